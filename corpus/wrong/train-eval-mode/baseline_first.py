"""The accuracy before any training puts the network into eval mode, and the whole run is trained without dropout."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(5)
x = torch.randn(256, 12)
y = (x[:, :3].sum(1) > 0).long() + (x[:, 3:6].sum(1) > 0).long()
net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.5), nn.Linear(48, 3))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)


@torch.inference_mode()
def accuracy():
    hits = net(x[192:]).argmax(1) == y[192:]
    return hits.float().mean().item()


net.eval()  # expect: train-eval-mode
print(f"untrained: {accuracy():.3f}")
for epoch in range(4):
    for i in torch.randperm(192).split(32):
        loss = F.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch}: {accuracy():.3f}")
