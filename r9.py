import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Tanh())
heads = nn.ModuleList([nn.Linear(16, 1) for _ in range(3)])
cell, out = nn.GRUCell(5, 16), nn.Linear(16, 1)
params = [*net.parameters(), *heads.parameters(), *cell.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, lr=1e-2)
def focal(p, y):
    e = (p - y).abs()
    return (e * e).mean()
for step in range(12):
    X = torch.randn(8, 4, 5); Y = torch.randn(8, 4)
    fast = torch.zeros(16, requires_grad=True)
    for t in range(3):
        loss = F.mse_loss((net(X[:, t]) * (1 + fast)).sum(1), Y[:, t])
        (g,) = torch.autograd.grad(loss, fast, create_graph=True)
        fast = fast - 0.1 * g
    loss = F.mse_loss((net(X[:, 3]) * (1 + fast)).sum(1), Y[:, 3])
    opt.zero_grad()
    loss.backward()
    opt.step()
