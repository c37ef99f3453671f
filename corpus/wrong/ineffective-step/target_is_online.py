"""The target network is the online network itself, so freezing the target freezes what is to be trained."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


def mlp(n_in, n_out, hidden=32):
    return nn.Sequential(nn.Linear(n_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, n_out))


class Bootstrap(nn.Module):
    def __init__(self, n_in=12, dim=16, decay=0.95):
        super().__init__()
        self.online, self.predictor = mlp(n_in, dim), mlp(dim, dim)
        self.target, self.decay = None, decay

    def target_network(self):
        if self.target is None:
            self.target = self.online  # expect: ineffective-step
            for p in self.target.parameters():
                p.requires_grad = False
        return self.target

    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.target.parameters(), self.online.parameters()):
            slow.copy_(self.decay * slow + (1 - self.decay) * fast)

    def forward(self, first, second):
        predicted = self.predictor(self.online(first))
        with torch.no_grad():
            wanted = self.target_network()(second)
        return 2 - 2 * F.cosine_similarity(predicted, wanted).mean()


def view(x):
    return x + 0.1 * torch.randn_like(x)


model = Bootstrap()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randn(128, 12) @ torch.randn(12, 12)
for epoch in range(3):
    for batch in data.split(32):
        loss = model(view(batch), view(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.follow()
    print(f"epoch {epoch + 1}, loss {loss.item():.4f}")
