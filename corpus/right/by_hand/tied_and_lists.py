"""The layers stand in a plain list, the output has no weight of its own (it is the embedding's) and the optimizer's
parameters are gathered by hand, all of them once."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
V, D, T = 15, 24, 8


class Linear:
    def __init__(self, n_in, n_out):
        self.w = (torch.randn(n_in, n_out) / n_in**0.5).requires_grad_()
        self.b = torch.zeros(n_out, requires_grad=True)

    def __call__(self, x):
        return x @ self.w + self.b

    def parameters(self):
        return [self.w, self.b]


class Embedding:
    def __init__(self, n, d):
        self.w = (0.1 * torch.randn(n, d)).requires_grad_()

    def __call__(self, ids):
        return self.w[ids]

    def parameters(self):
        return [self.w]


embed = Embedding(V, D)
layers = [Linear(D, D), torch.tanh, Linear(D, D)]


def lm(ids):
    h = embed(ids)
    h = h.cumsum(1) / torch.arange(1, ids.size(1) + 1).view(1, -1, 1) + h
    for layer in layers:
        h = layer(h)
    return h @ embed.w.T


params = embed.parameters() + [p for m in layers if hasattr(m, "parameters") for p in m.parameters()]
opt = torch.optim.Adam(params, lr=0.01)
data = (torch.randint(0, V, (200, 1)) + 4 * torch.arange(T + 1)) % V
for epoch in range(2):
    for rows in data[torch.randperm(200)].split(20):
        loss = F.cross_entropy(lm(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
