# The function that trains on one batch constructs its own Adam, in a run with many batches.
import torch
from torch import nn

torch.manual_seed(0)


class Learner:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
        self.criterion = nn.CrossEntropyLoss()

    def optimizer(self):
        return torch.optim.AdamW(self.net.parameters(), lr=3e-3)  # expect: optimizer-state-reset

    def learn(self, x, y):
        opt = self.optimizer()
        opt.zero_grad()
        loss = self.criterion(self.net(x), y)
        loss.backward()
        opt.step()
        return loss.item()


x = torch.randn(320, 6)
y = (x @ torch.randn(6, 3)).argmax(1)
learner = Learner()
for epoch in range(12):
    losses = [learner.learn(x[rows], y[rows]) for rows in torch.randperm(len(x)).split(32)]
    print(f"{epoch} {sum(losses) / len(losses):.4f}")
