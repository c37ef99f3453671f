"""Node features take a detour through numpy for the neighbour average, which cuts the graph: the input layer of the GNN never gets a gradient."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def stochastic_block_graph(rng, sizes=(20, 20, 20), p_in=0.3, p_out=0.03):
    label = np.repeat(np.arange(len(sizes)), sizes)
    prob = np.where(label[:, None] == label[None, :], p_in, p_out)
    upper = np.triu(rng.random(prob.shape) < prob, 1)
    adj = (upper | upper.T).astype(np.float32)
    np.fill_diagonal(adj, 1.0)
    feats = rng.normal(size=(len(label), 6)).astype(np.float32)
    feats[:, :3] += 0.8 * np.eye(3, dtype=np.float32)[label]
    return adj, feats, label


class MeanAggregator:
    """Averages every node's features over its neighbourhood."""

    def __init__(self, adj):
        self.weights = adj / adj.sum(axis=1, keepdims=True)

    def __call__(self, h):
        pooled = self.weights @ h.detach().numpy()  # expect: broken-graph
        return torch.from_numpy(pooled)


class GraphNet(nn.Module):
    def __init__(self, aggregator, d_in, d_hidden, n_class):
        super().__init__()
        self.aggregate = aggregator
        self.lin_in = nn.Linear(d_in, d_hidden)
        self.lin_mid = nn.Linear(d_hidden, d_hidden)
        self.lin_out = nn.Linear(d_hidden, n_class)

    def forward(self, x):
        h = torch.tanh(self.lin_in(x))
        h = self.aggregate(h)
        h = torch.tanh(self.lin_mid(h))
        return self.lin_out(h)


def accuracy(model, x, y, mask):
    model.eval()
    with torch.no_grad():
        pred = model(x).argmax(1)
    return (pred[mask] == y[mask]).float().mean().item()


def main(seed=5):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    adj, feats, label = stochastic_block_graph(rng)
    x, y = torch.from_numpy(feats), torch.from_numpy(label)
    perm = torch.from_numpy(rng.permutation(len(label)))
    train_idx, test_idx = perm[:36], perm[36:]

    model = GraphNet(MeanAggregator(adj), 6, 16, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    for epoch in range(3):
        model.train()
        for part in train_idx[torch.randperm(len(train_idx))].split(9):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x)[part], y[part])
            loss.backward()
            optimizer.step()
        print(
            f"epoch {epoch} loss {loss.item():.4f} "
            f"train {accuracy(model, x, y, train_idx):.3f} test {accuracy(model, x, y, test_idx):.3f}"
        )


if __name__ == "__main__":
    main()
