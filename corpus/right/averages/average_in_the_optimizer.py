"""The optimizer gets all parameters, also those of the average, which runs without gradients and is moved by hand."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fast = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6))
        self.slow = copy.deepcopy(self.fast)
        self.guess = nn.Linear(6, 6)

    def forward(self, one, two):
        guess = self.guess(self.fast(one))
        with torch.no_grad():
            known = self.slow(two)
        return 1 - F.cosine_similarity(guess, known).mean()

    def follow(self):
        fast, slow = self.fast.state_dict(), self.slow.state_dict()
        self.slow.load_state_dict({name: slow[name].lerp(fast[name], 0.05) for name in slow})


pair = Pair()
sgd = torch.optim.SGD(pair.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for step in range(40):
    x = torch.randn(32, 12)
    loss = pair(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    pair.follow()
print(f"loss {loss.item():.3f}")
