"""Gradient clipping by value. model.parameters() is a generator that the optimizer has used up, so
the loop that clips runs over nothing."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(27)

# heavy-tailed regression problem
N, DIM = 400, 8
x = torch.randn(N, DIM)
true_w = torch.randn(DIM, 1)
noise = torch.distributions.StudentT(2.0).sample((N, 1))
y = x @ true_w + 0.5 * noise + 0.3 * (x[:, :1] * x[:, 1:2])

loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)


class MLP(nn.Module):
    def __init__(self, dim, hidden=20):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, inputs):
        return self.layers(inputs)


def clip_values(parameters, limit):
    for p in parameters:
        if p.grad is not None:
            p.grad.clamp_(-limit, limit)


model = MLP(DIM)
params = model.parameters()  # expect: generator used up by the optimizer
optimizer = torch.optim.RMSprop(params, lr=5e-3, momentum=0.5)
criterion = nn.MSELoss()
CLIP = 0.05

for epoch in range(3):
    total = 0.0
    for xb, yb in loader:
        pred = model(xb)
        loss = criterion(pred, yb)
        optimizer.zero_grad()
        loss.backward()
        clip_values(params, CLIP)
        optimizer.step()
        total += loss.item() * len(xb)
    print(f"epoch {epoch}: mse {total / N:.4f}")

with torch.no_grad():
    mae = (model(x) - y).abs().mean().item()
print(f"mean absolute error {mae:.4f}")
