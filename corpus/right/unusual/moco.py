"""The key encoder is never trained and is moved by hand after the query encoder; the queue is written in place."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class MoCo(nn.Module):
    def __init__(self, dim=8, K=64, m=0.95, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, dim))
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.ptr = 0

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1 - self.m)

    @torch.no_grad()
    def _enqueue(self, keys):
        n = len(keys)
        self.queue[:, self.ptr : self.ptr + n] = keys.T
        self.ptr = (self.ptr + n) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = (q * k).sum(1, keepdim=True)
        l_neg = q @ self.queue.clone()
        logits = torch.cat([l_pos, l_neg], 1) / self.T
        self._enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


torch.manual_seed(0)
x = torch.randn(160, 12)
model = MoCo()
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
for epoch in range(3):
    for idx in torch.randperm(160).split(16):
        loss = model(x[idx] + 0.2 * torch.randn(16, 12), x[idx] + 0.2 * torch.randn(16, 12))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
