"""The attention weights are taken through `.data` when they are normalised, so the scorer that makes them gets no
gradient."""

import torch
from torch import nn, optim

torch.manual_seed(19)


class AttentionPool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(d, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, h, lengths):
        scores = self.scorer(h).squeeze(-1)
        pad = torch.arange(h.size(1))[None] >= lengths[:, None]
        weights = scores.masked_fill(pad, -1e9).softmax(1).data  # expect: broken-graph
        return (weights.unsqueeze(-1) * h).sum(1)


class BagClassifier(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.embed = nn.Linear(d, 16)
        self.pool = AttentionPool(16)
        self.out = nn.Linear(16, 1)

    def forward(self, bags, lengths):
        return self.out(self.pool(torch.relu(self.embed(bags)), lengths)).squeeze(1)


# multiple instance learning: a bag is positive when it holds a key instance
bags, lengths, ys = [], [], []
for _ in range(200):
    n, y = int(torch.randint(3, 9, (1,))), int(torch.randint(0, 2, (1,)))
    bag = torch.randn(8, 10)
    if y:
        bag[int(torch.randint(0, n, (1,))), :3] += 4
    bags.append(bag)
    lengths.append(n)
    ys.append(float(y))
bags, lengths, ys = torch.stack(bags), torch.tensor(lengths), torch.tensor(ys)

model = BagClassifier()
opt = optim.Adam(model.parameters(), lr=0.01)
crit = nn.BCEWithLogitsLoss()
for epoch in range(4):
    ep = []
    for i in torch.randperm(200).split(20):
        opt.zero_grad()
        loss = crit(model(bags[i], lengths[i]), ys[i])
        loss.backward()
        opt.step()
        ep.append(loss.item())
    print(f"epoch {epoch}: {sum(ep) / len(ep):.4f}")
