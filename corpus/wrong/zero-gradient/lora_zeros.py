"""Both factors of the low-rank update start at zero, so each one's gradient is multiplied by the other's zeros and
neither ever moves."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 4, alpha: int = 8):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.scaling = alpha / math.sqrt(r)
        self.lora_A = nn.Parameter(torch.zeros(r, base.in_features))  # expect: zero-gradient
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))  # expect: zero-gradient

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


def inject(module, r):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child, r))
        else:
            inject(child, r)
    return module


def main():
    torch.manual_seed(28)
    model = nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 32), nn.ReLU()), nn.Linear(32, 4)
    )
    inject(model, r=4)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print("trainable:", sum(p.numel() for p in trainable))

    x = torch.randn(256, 12)
    y = (x @ torch.randn(12, 4)).argmax(1)
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    for epoch in range(3):
        losses = []
        for idx in torch.randperm(256).chunk(8):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")


main()
