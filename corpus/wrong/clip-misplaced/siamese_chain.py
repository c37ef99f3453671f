"""A chained iterator over both networks is used up by the first clipping, all later ones find nothing: the
second gradient has 39 times the norm that was asked for.
"""

import itertools

import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, d_in, d_out=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_in, 32), nn.ELU(), nn.Linear(32, d_out))

    def forward(self, x):
        return F.normalize(self.body(x), dim=-1)


def triplet(anchor, positive, margin=0.5):
    sim = anchor @ positive.t()
    pos = sim.diagonal().unsqueeze(1)
    off = 1 - torch.eye(len(sim))
    return (F.relu(margin + sim - pos) * off).sum() / len(sim)


class Matching:
    def __init__(self, query_dim, doc_dim):
        self.query_tower = Tower(query_dim)
        self.doc_tower = Tower(doc_dim)
        self.optimizer = torch.optim.SGD(
            [*self.query_tower.parameters(), *self.doc_tower.parameters()], lr=0.3, momentum=0.9
        )
        towers = self.query_tower, self.doc_tower
        self.weights = itertools.chain(*(t.parameters() for t in towers))  # expect: clip-misplaced

    def fit_batch(self, queries, docs):
        loss = triplet(self.query_tower(queries), self.doc_tower(docs))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, max_norm=0.5)  # expect: clip-misplaced
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(70)
    topics = torch.randn(128, 6)
    queries = topics @ torch.randn(6, 10) + 0.2 * torch.randn(128, 10)
    docs = topics @ torch.randn(6, 14) + 0.2 * torch.randn(128, 14)
    matching = Matching(10, 14)
    for epoch in range(2):
        losses = [matching.fit_batch(queries[i], docs[i]) for i in torch.randperm(128).split(16)]
        print(f"epoch {epoch} triplet loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
