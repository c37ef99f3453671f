"""Looks like parameters left out of the optimizer and a gradient of zero: LoRA freezes the base weights,
and as B starts at zero, A gets no gradient in the very first step."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v_proj, self.o_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


class Classifier(nn.Module):
    def __init__(self, vocab=20, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.attn = nn.ModuleList([Attention(dim) for _ in range(2)])
        self.score = nn.Linear(dim, 2)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.attn:
            x = x + layer(F.layer_norm(x, x.shape[-1:]))
        return self.score(x.mean(1))


def add_lora(model, targets=("q_proj", "v_proj")):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in targets:
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, LoRALinear(getattr(module, name)))
    model.score.requires_grad_(True)
    return model


torch.manual_seed(0)
model = add_lora(Classifier())
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable: {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")
optimizer = torch.optim.AdamW(trainable, lr=5e-3)
ids = torch.randint(20, (96, 10))
labels = (ids == 3).any(1).long()
for epoch in range(2):
    for i in range(0, 96, 24):
        loss = F.cross_entropy(model(ids[i : i + 24]), labels[i : i + 24])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch} loss {loss.item():.4f}")
