"""A denoiser of images in chunks: the decay is long enough for all chunks, but advances once per four of them."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def train(images, *, epochs=2, batch=8, accumulate=4):
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    updates = epochs * math.ceil(len(images) / batch)  # expect: scheduler-cadence
    scheduler = LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 3) * max(0.1, 1 - n / updates))
    for _ in range(epochs):
        for i, index in enumerate(torch.randperm(len(images)).split(batch)):
            clean = images[index]
            noise = torch.randn_like(clean)
            level = torch.rand(len(clean), 1)
            loss = F.mse_loss(model((1 - level) * clean + level * noise), noise)
            (loss / accumulate).backward()
            if (i + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    return model


torch.manual_seed(0)
train(torch.randn(128, 16).tanh())
