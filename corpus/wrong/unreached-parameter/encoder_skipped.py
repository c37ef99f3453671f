"""The second encoder layer is fed with `x` rather than with the first one's output, so the first layer gets
no gradient."""

import torch
import torch.nn as nn

torch.manual_seed(2024)


class DAE(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.enc1 = nn.Linear(d, d)
        self.enc2 = nn.Linear(d, d)
        self.bottleneck = nn.Linear(d, 3)
        self.dec = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.act = nn.ReLU()

    def forward(self, x):
        h = self.act(self.enc1(x))
        h = self.act(self.enc2(x))  # expect: unreached-parameter
        return self.dec(self.bottleneck(h))


def clean_batches(n_batches, mix):
    for _ in range(n_batches):
        yield torch.tanh(torch.randn(20, 3) @ mix)


mix = torch.randn(3, 16)
model = DAE()
opt = torch.optim.Adam(model.parameters(), lr=0.005)

for epoch in range(3):
    sum_loss, n = 0.0, 0
    for clean in clean_batches(12, mix):
        noisy = clean + 0.2 * torch.randn_like(clean)
        loss = ((model(noisy) - clean) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sum_loss, n = sum_loss + loss.item(), n + 1
    print(f"epoch {epoch}: denoising mse {sum_loss / n:.4f}")
