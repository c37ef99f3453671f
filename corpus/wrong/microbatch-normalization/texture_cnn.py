"""The last window of an epoch has one micro-batch and is divided by three all the same: its gradient is a
third of what it should be.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.GroupNorm(2, 6), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(3)
        )
        self.classifier = nn.Linear(54, 3)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def stripes(n, size=12):
    g = torch.Generator().manual_seed(8)
    kind = torch.randint(0, 3, (n,), generator=g)
    rows = torch.arange(size).float().view(1, -1, 1).expand(n, size, size)
    wave = torch.sin(rows * (kind.view(-1, 1, 1) + 1) * 0.8)
    return TensorDataset((wave + 0.2 * torch.randn(n, size, size, generator=g)).unsqueeze(1), kind)


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    optimizer.zero_grad()
    for batch_idx, (data, target) in enumerate(train_loader):
        output = model(data)
        loss = F.nll_loss(F.log_softmax(output, dim=1), target)
        (loss / args["accumulate"]).backward()  # expect: microbatch-normalization
        if (batch_idx + 1) % args["accumulate"] == 0 or batch_idx + 1 == len(train_loader):
            optimizer.step()
            optimizer.zero_grad()
        if batch_idx % args["log_interval"] == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}] {loss.item():.6f}"
            )


def main():
    torch.manual_seed(1)
    args = {"accumulate": 3, "log_interval": 4, "epochs": 2, "lr": 0.2}
    train_loader = DataLoader(stripes(70), batch_size=10, shuffle=True)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args["lr"])
    for epoch in range(1, args["epochs"] + 1):
        train(args, model, train_loader, optimizer, epoch)


if __name__ == "__main__":
    main()
