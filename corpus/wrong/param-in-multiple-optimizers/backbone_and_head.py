"""The slow optimizer was meant for the body but holds all parameters, so the head is stepped by both optimizers
in each iteration."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

torch.manual_seed(0)
data, target = load_digits(return_X_y=True)
data = torch.tensor(data[:500] / 16, dtype=torch.float32)
target = torch.tensor(target[:500])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


model = Classifier()
opt_body = optim.AdamW(model.parameters(), lr=1e-3)  # expect: param-in-multiple-optimizers
opt_head = optim.AdamW(model.head.parameters(), lr=1e-2)

for epoch in range(3):
    correct = 0
    for idx in torch.randperm(500).split(50):
        out = model(data[idx])
        loss = nn.functional.cross_entropy(out, target[idx])
        opt_body.zero_grad()
        opt_head.zero_grad()
        loss.backward()
        opt_body.step()
        opt_head.step()
        correct += (out.argmax(1) == target[idx]).sum().item()
    print(f"epoch {epoch}: acc {correct / 500:.3f}")
