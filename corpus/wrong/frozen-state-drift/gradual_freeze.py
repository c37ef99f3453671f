"""Layers are frozen during training while the optimizer still holds them with zeroed instead of absent gradients, so Adam's momentum keeps moving them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Stage(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.norm = nn.LayerNorm(n_out)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(self.linear(x)))


class StagedNet(nn.Module):
    def __init__(self, sizes, n_out):
        super().__init__()
        self.stages = nn.ModuleList(Stage(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.head = nn.Linear(sizes[-1], n_out)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class FreezeOut:
    """Freezes one more stage, from the input side, at the start of each later epoch."""

    def __init__(self, net):
        self.net = net

    def __call__(self, epoch):
        for stage in self.net.stages[:epoch]:
            for p in stage.parameters():
                p.requires_grad_(False)  # expect: frozen-state-drift
        return sum(p.numel() for p in self.net.parameters() if p.requires_grad)


def dataset(n):
    x = torch.randn(n, 6)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs() - x[:, 3]], dim=1)
    return TensorDataset(x, y)


def fit(net, loader, epochs, on_epoch_start):
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(epochs):
        trainable = on_epoch_start(epoch)
        net.train()
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)  # expect: frozen-state-drift
            loss = loss_fn(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        yield epoch, total / len(loader), trainable


def main():
    torch.manual_seed(59)
    torch.set_num_threads(1)
    net = StagedNet([6, 24, 24, 16], 2)
    loader = DataLoader(dataset(192), batch_size=24, shuffle=True)
    x_val, y_val = dataset(64).tensors
    for epoch, loss, trainable in fit(net, loader, 3, FreezeOut(net)):
        net.eval()
        with torch.no_grad():
            val = nn.functional.mse_loss(net(x_val), y_val).item()
        print(f"epoch {epoch} trainable {trainable} train {loss:.4f} val {val:.4f}")


if __name__ == "__main__":
    main()
