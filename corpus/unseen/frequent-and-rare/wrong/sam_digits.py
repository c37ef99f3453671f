"""Sharpness-aware training with two backward passes per step. The weights are moved up before the
second pass and not put back before the update, so they drift along the gradient."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class SAM:
    def __init__(self, params, base_cls, rho=0.05, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.base = base_cls(self.params, **kwargs)
        self.rho = rho
        self.shift = []

    @torch.no_grad()
    def ascend(self):
        norm = torch.norm(torch.stack([p.grad.norm() for p in self.params]))
        self.shift = []
        for p in self.params:
            e = p.grad * (self.rho / (norm + 1e-12))
            p.add_(e)
            self.shift.append(e)

    @torch.no_grad()
    def descend(self):  # expect: perturbation not undone
        self.base.step()

    def zero_grad(self):
        self.base.zero_grad()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 40)
        self.fc2 = nn.Linear(40, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def train_step(model, sam, x, y):
    loss = F.cross_entropy(model(x), y)
    sam.zero_grad()
    loss.backward()
    sam.ascend()
    sam.zero_grad()
    F.cross_entropy(model(x), y).backward()
    sam.descend()
    return loss.item()


def main():
    torch.manual_seed(111)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    model = Classifier()
    sam = SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9)
    losses = []
    for step in range(25):
        idx = torch.randint(0, 1400, (128,))
        losses.append(train_step(model, sam, x[idx], y[idx]))
    with torch.no_grad():
        acc = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"held-out accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
