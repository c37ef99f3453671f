"""Discriminative learning rates by gradient hooks. The hooks scale the trunk's gradients on their
way into .grad and stay registered for the complete training."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.trunk(x)).squeeze(-1)


class Session:
    def __init__(self, trunk_factor=0.3, lr=0.1, batch=96):
        torch.manual_seed(33)
        data = load_breast_cancer()
        self.x = torch.tensor(StandardScaler().fit_transform(data.data), dtype=torch.float32)
        self.y = torch.tensor(data.target, dtype=torch.float32)
        self.net = Net()
        self.factor = trunk_factor
        self.batch = batch
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.slow_down_trunk()

    def slow_down_trunk(self):
        for p in self.net.trunk.parameters():
            p.register_hook(lambda g: g * self.factor)

    def run_epoch(self):
        losses = []
        for idx in torch.randperm(len(self.x)).split(self.batch):
            loss = F.binary_cross_entropy_with_logits(self.net(self.x[idx]), self.y[idx])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def accuracy(self):
        with torch.no_grad():
            return ((self.net(self.x) > 0) == self.y.bool()).float().mean().item()


if __name__ == "__main__":
    s = Session()
    for e in range(5):
        print(f"epoch {e}: loss {s.run_epoch():.4f}")
    print(f"accuracy {s.accuracy():.3f}")
