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
    for k in range(4):
        opt.zero_grad()
        loss = F.mse_loss(heads[0](net(X[:, k])).squeeze(1), Y[:, k])
        loss.backward()
        opt.step()
