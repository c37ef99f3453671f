"""Hooks on the hidden activations log how much gradient arrives there. The optimizer steps on gradients that were
cleared right after backward(), so nothing is trained."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 24)
        self.fc2 = nn.Linear(24, 1)
        self.arriving = []

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        if h.requires_grad:
            h.register_hook(lambda grad: self.arriving.append(grad.norm().item()))
        return self.fc2(h).squeeze(1)


torch.manual_seed(2)
data = load_diabetes()
X = torch.tensor(data.data, dtype=torch.float32) * 20
y = (torch.tensor(data.target, dtype=torch.float32) - 152) / 77
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(2):
    for batch in torch.randperm(len(X)).split(64):
        loss = nn.functional.mse_loss(net(X[batch]), y[batch])
        loss.backward()
        optimizer.zero_grad()  # expect: zero-grad-misplaced
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f} arriving {sum(net.arriving) / len(net.arriving):.4f}")
