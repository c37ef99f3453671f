"""The neighbour messages are computed under no_grad, so the message layer (which is in the optimizer) never learns."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.message = nn.Linear(n_in, n_out, bias=False)
        self.update = nn.Linear(n_in, n_out)

    def aggregate(self, x, adj):
        deg = adj.sum(1, keepdim=True).clamp(min=1)
        return adj @ self.message(x) / deg

    def forward(self, x, adj):
        with torch.no_grad():  # expect: broken-graph
            msg = self.aggregate(x, adj)
        return self.update(x) + msg


class GNN(nn.Module):
    def __init__(self, n_in, hidden, n_cls):
        super().__init__()
        self.g1 = GraphConv(n_in, hidden)
        self.g2 = GraphConv(hidden, n_cls)

    def forward(self, x, adj):
        return self.g2(F.relu(self.g1(x, adj)), adj)


def planted_partition(n, k, p_in, p_out):
    block = torch.arange(n) % k
    prob = torch.where(block[:, None] == block[None], p_in, p_out)
    upper = torch.triu(torch.rand(n, n) < prob, 1)
    return block, (upper | upper.T).float()


torch.manual_seed(41)
labels, adj = planted_partition(120, 3, 0.3, 0.03)
x = F.one_hot(labels, 3).float() + 1.5 * torch.randn(120, 3)
train_mask = torch.rand(120) < 0.5

model = GNN(3, 16, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
for epoch in range(30):
    model.train()
    optimizer.zero_grad()
    out = model(x, adj)
    loss = F.cross_entropy(out[train_mask], labels[train_mask])
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        acc = (out.argmax(1) == labels)[~train_mask].float().mean()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test acc {acc:.3f}")
