"""The gradients are cleared before every micro-batch, so each update uses only the last of its four."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(31)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        h = self.embedding(ids)
        h = self.norm(h + self.attn(h, h, h, need_weights=False)[0])
        return self.head(h.mean(1))


ids = torch.randint(0, 50, (320, 8))
label = (ids < 17).sum(1).clamp(1, 4).sub(1).clamp(max=2)

cfg = {"micro": 10, "accum": 4, "epochs": 2, "lr": 4e-3}
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=0.01)
num_updates = 0
for epoch in range(cfg["epochs"]):
    order = torch.randperm(len(ids)).view(-1, cfg["micro"])
    for k, idx in enumerate(order):
        opt.zero_grad()  # expect: zero-grad-misplaced
        loss = F.cross_entropy(net(ids[idx]), label[idx]) / cfg["accum"]
        loss.backward()
        if (k + 1) % cfg["accum"] == 0:
            opt.step()
            num_updates += 1
    print(f"epoch {epoch}: {num_updates} updates, last loss {loss.item() * cfg['accum']:.4f}")
