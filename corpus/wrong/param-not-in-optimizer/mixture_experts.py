"""The experts live in a plain Python list, so model.parameters() misses them and the optimizer only ever trains the gate."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(40)
torch.set_num_threads(1)


class Expert(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.fc1 = nn.Linear(n_in, n_hidden)
        self.fc2 = nn.Linear(n_hidden, n_out)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class MixtureOfExperts(nn.Module):
    def __init__(self, n_in, n_out, n_experts=3, n_hidden=12):
        super().__init__()
        self.gate = nn.Linear(n_in, n_experts)
        self.experts = [
            Expert(n_in, n_hidden, n_out) for _ in range(n_experts)
        ]  # expect: param-not-in-optimizer

    def forward(self, x):
        weights = self.gate(x).softmax(dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (weights.unsqueeze(-1) * outputs).sum(dim=1), weights


def piecewise(n):
    x = torch.rand(n, 3) * 2 - 1
    y = torch.where(x[:, :1] > 0, 2 * x[:, 1:2], -(x[:, 2:] ** 2))
    return x, y + 0.02 * torch.randn_like(y)


def balance_penalty(weights):
    usage = weights.mean(0)
    return (usage * usage.clamp(min=1e-6).log()).sum()


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        pred, weights = model(x)
    model.train()
    return F.mse_loss(pred, y).item(), weights.mean(0).tolist()


x, y = piecewise(256)
x_val, y_val = piecewise(64)
model = MixtureOfExperts(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)

for epoch in range(3):
    for idx in torch.randperm(len(x)).split(32):
        pred, weights = model(x[idx])
        loss = F.mse_loss(pred, y[idx]) + 0.01 * balance_penalty(weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    val, usage = evaluate(model, x_val, y_val)
    scheduler.step(val)
    print(f"epoch {epoch} val mse {val:.4f} usage {[round(u, 2) for u in usage]}")
