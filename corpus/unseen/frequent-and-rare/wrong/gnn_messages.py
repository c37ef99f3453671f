"""Message passing. Messages are added with an indexed +=, which keeps only one message per node
when several edges point to it."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(131)


def random_graph(n_nodes, n_edges, n_classes):
    labels = torch.randint(0, n_classes, (n_nodes,))
    src = torch.randint(0, n_nodes, (n_edges,))
    dst = torch.randint(0, n_nodes, (n_edges,))
    keep = (labels[src] == labels[dst]) | (torch.rand(n_edges) < 0.15)
    src, dst = src[keep], dst[keep]
    feats = F.one_hot(labels, n_classes).float() + 1.2 * torch.randn(n_nodes, n_classes)
    return feats, torch.cat([src, dst]), torch.cat([dst, src]), labels


class SumConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.self_lin = nn.Linear(n_in, n_out)
        self.msg_lin = nn.Linear(n_in, n_out, bias=False)

    def forward(self, h, src, dst, inv_degree):
        messages = self.msg_lin(h)[src]
        agg = torch.zeros(h.size(0), messages.size(1))
        agg[dst] += messages  # expect: duplicate indices lost
        return self.self_lin(h) + agg * inv_degree


class GNN(nn.Module):
    def __init__(self, n_in, hidden, n_classes):
        super().__init__()
        self.conv1 = SumConv(n_in, hidden)
        self.conv2 = SumConv(hidden, n_classes)

    def forward(self, x, src, dst, inv_degree):
        h = F.relu(self.conv1(x, src, dst, inv_degree))
        return self.conv2(h, src, dst, inv_degree)


x, src, dst, y = random_graph(150, 1500, 4)
degree = torch.bincount(dst, minlength=len(x)).clamp(min=1).float()
inv_degree = (1.0 / degree).unsqueeze(1)
train_mask = torch.rand(len(x)) < 0.3

model = GNN(4, 16, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=5e-4)

for epoch in range(25):
    model.train()
    optimizer.zero_grad()
    out = model(x, src, dst, inv_degree)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    if epoch % 8 == 0:
        with torch.no_grad():
            acc = (out.argmax(1) == y)[~train_mask].float().mean().item()
        print(f"epoch {epoch:2d}  loss {loss.item():.4f}  test acc {acc:.3f}")
print(f"edges {len(src)}, mean degree {degree.mean().item():.1f}")
