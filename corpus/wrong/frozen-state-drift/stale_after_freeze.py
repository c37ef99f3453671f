"""Only trainable parameters are cleared, so the freshly frozen stem keeps the last gradient it got and is stepped along
it in every later update."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def trainable(model):
    return (p for p in model.parameters() if p.requires_grad)


def zero_grad(model):
    for p in trainable(model):  # expect: frozen-state-drift
        p.grad = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 5, stride=2)
        self.mid = nn.Conv1d(8, 8, 3)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        h = F.relu(self.mid(F.relu(self.stem(x))))
        return self.fc(h.mean(-1))


def make_data(n=240, length=32):
    y = torch.randint(0, 2, (n,))
    freq = torch.where(y == 1, 0.9, 0.4).unsqueeze(1)
    t = torch.arange(length).float()
    return (torch.sin(freq * t + 6.28 * torch.rand(n, 1)) + 0.4 * torch.randn(n, length)).unsqueeze(1), y


def main(freeze_from=1, epochs=3):
    torch.manual_seed(18)
    x, y = make_data()
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        if epoch == freeze_from:
            net.stem.requires_grad_(False)
        losses = []
        for k in torch.randperm(len(x)).split(24):
            zero_grad(net)
            loss = F.cross_entropy(net(x[k]), y[k])
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")


main()
