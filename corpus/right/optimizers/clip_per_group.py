"""Looks like a clip that misses parameters: the encoder and the decoder are clipped apart, each by its own
norm, and the bare temperature by value."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20)

image_tower = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 12))
text_tower = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 12))
logit_scale = nn.Parameter(torch.tensor(2.0))

optimizer = torch.optim.AdamW(
    [
        {"params": image_tower.parameters(), "lr": 2e-3, "max_norm": 1.0},
        {"params": text_tower.parameters(), "lr": 4e-3, "max_norm": 0.5},
        {"params": [logit_scale], "lr": 1e-2, "weight_decay": 0.0},
    ]
)


def clip_gradients(opt):
    for group in opt.param_groups:
        if "max_norm" in group:
            nn.utils.clip_grad_norm_(group["params"], group["max_norm"])
        else:
            nn.utils.clip_grad_value_(group["params"], 0.1)


latent = torch.randn(128, 5)
images = torch.tanh(latent @ torch.randn(5, 16))
texts = torch.tanh(latent @ torch.randn(5, 10))

for epoch in range(2):
    for idx in torch.randperm(128).split(32):
        a = F.normalize(image_tower(images[idx]), dim=-1)
        b = F.normalize(text_tower(texts[idx]), dim=-1)
        logits = logit_scale.exp() * a @ b.T
        target = torch.arange(len(idx))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(optimizer)
        optimizer.step()
        with torch.no_grad():
            logit_scale.clamp_(0, 4.6)
    print(f"epoch {epoch}: loss {loss.item():.4f} scale {logit_scale.exp().item():.3f}")
