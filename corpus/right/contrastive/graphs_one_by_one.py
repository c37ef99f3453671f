"""A graph autoencoder scores all pairs of nodes of a graph. Graphs are the samples: each runs by itself, and the losses of
a batch of graphs are averaged."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def random_graph(nodes):
    positions = torch.rand(nodes, 2)
    near = (torch.cdist(positions, positions) < 0.4).float()
    return positions + 0.05 * torch.randn(nodes, 2), near


graphs = [random_graph(n) for n in torch.randint(6, 15, (40,)).tolist()]
encoder = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(encoder.parameters(), lr=5e-3)
for epoch in range(2):
    for first in range(0, len(graphs), 8):
        batch = graphs[first : first + 8]
        for features, adjacency in batch:
            codes = encoder(adjacency @ features / adjacency.sum(1, keepdim=True))
            loss = F.binary_cross_entropy_with_logits(codes @ codes.T, adjacency)
            (loss / len(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, f"{loss.item():.4f}")
