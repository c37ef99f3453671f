"""The loop adds up batch_size // micro_batch_size = 4 means and divides by the 8 of another entry: the
gradients are half of what they should be.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "seed": 123,
    "hidden": [48, 48],
    "batch_size": 64,
    "micro_batch_size": 16,
    "gradient_accumulation_steps": 8,
    "learning_rate": 0.25,
    "epochs": 2,
}


def build_model(in_dim, out_dim, hidden):
    layers, prev = [], in_dim
    for width in hidden:
        layers += [nn.Linear(prev, width), nn.LayerNorm(width), nn.GELU()]
        prev = width
    return nn.Sequential(*layers, nn.Linear(prev, out_dim))


def make_moons(n, gen):
    theta = torch.rand(n, generator=gen) * torch.pi
    label = torch.arange(n) % 2
    x = torch.where(label == 0, theta.cos(), 1 - theta.cos())
    y = torch.where(label == 0, theta.sin(), 0.5 - theta.sin())
    return torch.stack([x, y], 1) + 0.1 * torch.randn(n, 2, generator=gen), label


def train_batch(model, optimizer, inputs, labels, cfg):
    optimizer.zero_grad(set_to_none=True)
    micro_batches = cfg["batch_size"] // cfg["micro_batch_size"]
    total = 0.0
    for x, y in zip(inputs.chunk(micro_batches), labels.chunk(micro_batches)):
        loss = F.cross_entropy(model(x), y)
        total += loss.detach()
        (loss / cfg["gradient_accumulation_steps"]).backward()  # expect: accumulation-scaling
    optimizer.step()
    return total.item() / micro_batches


def main(cfg):
    torch.manual_seed(cfg["seed"])
    gen = torch.Generator().manual_seed(cfg["seed"])
    model = build_model(2, 2, cfg["hidden"])
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["learning_rate"])
    x, y = make_moons(256, gen)
    for epoch in range(cfg["epochs"]):
        order = torch.randperm(len(x), generator=gen)
        losses = [train_batch(model, optimizer, x[i], y[i], cfg) for i in order.split(cfg["batch_size"])]
        print(f"epoch {epoch:2d}  loss {sum(losses) / len(losses):.4f}")


main(CONFIG)
