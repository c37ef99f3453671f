"""Four micro-batches make an update, but each loss is divided by the number of batches of the epoch (20): the
gradient is a fifth of the mean over the window."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Sinusoids(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.freq = torch.rand(n, generator=g) * 3 + 0.5
        t = torch.linspace(0, 6.28, 40)
        self.x = torch.sin(self.freq[:, None] * t) + 0.05 * torch.randn(n, 40, generator=g)

    def __len__(self):
        return len(self.freq)

    def __getitem__(self, i):
        return self.x[i], self.freq[i]


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 7, stride=2)
        self.fc = nn.Linear(12 * 17, 1)

    def forward(self, x):
        h = torch.relu(self.conv(x.unsqueeze(1)))
        return self.fc(h.flatten(1)).squeeze(-1)


def main():
    torch.manual_seed(11)
    train_dl = DataLoader(Sinusoids(320, seed=1), batch_size=16, shuffle=True)
    model = Regressor()
    opt = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.SmoothL1Loss()
    accum_iter = 4

    for epoch in range(3):
        model.train()
        mean_loss = 0.0
        for batch_idx, (inputs, freq) in enumerate(train_dl):
            loss = loss_fn(model(inputs), freq)
            mean_loss += loss.item() / len(train_dl)
            loss = loss / len(train_dl)  # expect: accumulation-scaling
            loss.backward()
            if ((batch_idx + 1) % accum_iter == 0) or (batch_idx + 1 == len(train_dl)):
                opt.step()
                opt.zero_grad()
        print(f"Epoch {epoch}: {mean_loss:.4f}")


if __name__ == "__main__":
    main()
