"""A weight of a module is a plain tensor, which parameters() leaves out."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.query = torch.randn(dim, dim, requires_grad=True)  # expect: param-not-in-optimizer

    def forward(self, x):
        h = self.proj(x)
        w = torch.softmax(h @ self.query @ h.transpose(-1, -2), -1)
        return (w @ h).mean(1)


torch.manual_seed(0)
model = Attention(8)
head = nn.Linear(8, 2)
opt = torch.optim.Adam(list(model.parameters()) + list(head.parameters()), lr=1e-2)
for _ in range(20):
    x, y = torch.randn(4, 5, 8), torch.randint(2, (4,))
    loss = nn.functional.cross_entropy(head(model(x)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(float(loss))
