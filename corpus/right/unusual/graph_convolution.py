"""A graph network on one graph: the whole graph is one batch, the loss is taken of the few nodes with labels, and the
attention coefficients are masked."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(size_in, size_out))
        self.bias = nn.Parameter(torch.zeros(size_out))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, x, adjacency):
        return torch.sparse.mm(adjacency, x @ self.kernel) + self.bias


class GraphAttention(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.linear = nn.Linear(size_in, size_out, bias=False)
        self.score = nn.Parameter(torch.empty(2 * size_out, 1))
        nn.init.xavier_normal_(self.score)

    def forward(self, x, adjacency):
        h = self.linear(x)
        source, target = h @ self.score[: h.shape[1]], h @ self.score[h.shape[1] :]
        e = F.leaky_relu(source + target.mT, 0.2).masked_fill(adjacency.to_dense() == 0, -9e15)
        return F.dropout(e.softmax(1), 0.2, training=self.training) @ h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GraphConv(7, 16)
        self.second = GraphAttention(16, 3)

    def forward(self, x, adjacency):
        return F.log_softmax(self.second(F.relu(self.first(x, adjacency)), adjacency), dim=1)


torch.manual_seed(8)
nodes = 40
edges = (torch.rand(nodes, nodes) < 0.1) | torch.eye(nodes, dtype=torch.bool)
edges = edges | edges.mT
weights = edges / edges.sum(1, keepdim=True)
x, labels = torch.randn(nodes, 7), torch.randint(3, (nodes,))
train, held_out = torch.arange(12), torch.arange(12, nodes)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(8):
    model.train()
    optimizer.zero_grad()
    output = model(x, weights.to_sparse())
    loss = F.nll_loss(output[train], labels[train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(x, weights.to_sparse())[held_out].argmax(1).eq(labels[held_out]).float().mean()
print(f"loss {loss.item():.3f}, accuracy {right.item():.2f}")
