"""A bfloat16 model whose float32 masters are in the optimizer. The model's own values change only now and then."""

import torch
from torch import nn

torch.manual_seed(7)
x, y = torch.randn(64, 16).bfloat16(), torch.randint(4, (64,))
model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 4)).to(torch.bfloat16)
weights = list(model.parameters())
masters = [nn.Parameter(weight.detach().float()) for weight in weights]
optimizer = torch.optim.AdamW(masters, lr=2e-5)
for _ in range(3):
    for part in torch.randperm(64).split(8):
        loss = nn.functional.cross_entropy(model(x[part]).float(), y[part])
        model.zero_grad()
        loss.backward()
        for master, weight in zip(masters, weights, strict=True):
            master.grad = weight.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
print(loss.item())
