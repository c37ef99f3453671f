"""Looks like a loop without zero_grad: the .grad of every parameter is dropped by hand before the forward
pass."""

import torch
from sklearn.datasets import load_wine
from torch import nn, optim
from torch.nn.functional import cross_entropy, dropout


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, h):
        return h + dropout(torch.relu(self.lin(self.norm(h))), 0.1, self.training)


def fit(model, x, y, steps, rng):
    opt = optim.NAdam(model.parameters(), lr=0.01)
    history = []
    for _ in range(steps):
        pick = torch.randint(len(x), (64,), generator=rng)
        for p in model.parameters():
            p.grad = None
        loss = cross_entropy(model(x[pick]), y[pick])
        loss.backward()
        opt.step()
        history.append(float(loss.detach()))
    return history


def run():
    torch.manual_seed(11)
    wine = load_wine()
    x = torch.as_tensor(wine.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.as_tensor(wine.target)
    model = nn.Sequential(nn.Linear(13, 24), Block(24), Block(24), nn.Linear(24, 3))
    history = fit(model, x, y, steps=12, rng=torch.Generator().manual_seed(0))
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")
    with torch.no_grad():
        model.eval()
        acc = (model(x).argmax(-1) == y).float().mean().item()
    print(f"train accuracy {acc:.3f}")


if __name__ == "__main__":
    run()
