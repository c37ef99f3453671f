"""The warm-up starts at a rate of exactly 0, so the first update changes nothing; the rate then rises as planned."""

import math

import torch
import torch.nn as nn

config = {"warmup": 5, "max_lr": 0.01, "min_lr": 0.001, "epochs": 3, "batch": 20}
torch.manual_seed(0)
x = torch.randn(200, 4)
y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
total_steps = config["epochs"] * (len(x) // config["batch"])


def get_lr(it):
    if it < config["warmup"]:
        return config["max_lr"] * it / config["warmup"]
    ratio = (it - config["warmup"]) / (total_steps - config["warmup"])
    return config["min_lr"] + 0.5 * (1 + math.cos(math.pi * ratio)) * (config["max_lr"] - config["min_lr"])


model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=config["max_lr"])
it = 0
for epoch in range(config["epochs"]):
    for idx in torch.randperm(200).split(config["batch"]):
        lr = get_lr(it)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = nn.functional.mse_loss(model(x[idx]), y[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        it += 1
    print(f"it {it} lr {lr:.5f} loss {loss.item():.4f}")
