"""The experts' outputs are copied into a new tensor with torch.tensor, so only the mixing weights learn and the experts
keep their initial values."""

import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes


class Expert(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.cols = cols
        self.net = nn.Sequential(nn.Linear(len(cols), 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x[:, self.cols]).squeeze(1)


class Mixture(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.experts = nn.ModuleList([Expert(g) for g in groups])
        self.logits = nn.Parameter(torch.zeros(len(groups)))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        votes = torch.tensor([expert(x).tolist() for expert in self.experts])  # expect: broken-graph
        return self.bias + len(self.experts) * self.logits.softmax(0) @ votes


torch.manual_seed(0)
X, y = load_diabetes(return_X_y=True)
X = torch.tensor(X[:400], dtype=torch.float32) * 20
y = torch.tensor((y[:400] - y.mean()) / y.std(), dtype=torch.float32)

model = Mixture([[0, 1], [2, 3], [4, 5, 6, 7], [8, 9]])
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
loss_fn = nn.MSELoss()

for epoch in range(5):
    losses = []
    for start in range(0, 400, 40):
        loss = loss_fn(model(X[start : start + 40]), y[start : start + 40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch} mse {sum(losses) / 10:.4f}")
