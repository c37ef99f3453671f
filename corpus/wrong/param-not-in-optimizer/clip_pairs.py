"""The learnable temperature belongs to the loss module, whose parameters are not handed to the optimizer, so it stays at its initial value."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class CLIPConfig:
    image_dim: int = 20
    text_vocab: int = 30
    embed_dim: int = 12
    batch_size: int = 24
    epochs: int = 2
    steps: int = 7
    lr: float = 5e-3


class ImageTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.image_dim, 32), nn.GELU(), nn.Linear(32, cfg.embed_dim))

    def forward(self, image):
        return F.normalize(self.net(image), dim=-1)


class TextTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bag = nn.EmbeddingBag(cfg.text_vocab, 16, mode="mean")
        self.proj = nn.Linear(16, cfg.embed_dim)

    def forward(self, tokens):
        return F.normalize(self.proj(self.bag(tokens)), dim=-1)


class SymmetricInfoNCE(nn.Module):
    def __init__(self, init_temperature=0.2):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / init_temperature)))

    def forward(self, a, b):
        logits = self.log_scale.exp() * a @ b.T
        target = torch.arange(len(a))
        return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))


class PairSource:
    def __init__(self, cfg):
        self.cfg = cfg
        self.word_vectors = torch.randn(cfg.text_vocab, cfg.image_dim)

    def batch(self):
        tokens = torch.randint(0, self.cfg.text_vocab, (self.cfg.batch_size, 5))
        image = self.word_vectors[tokens].mean(1) + 0.1 * torch.randn(self.cfg.batch_size, self.cfg.image_dim)
        return image, tokens


def main():
    torch.manual_seed(33)
    torch.set_num_threads(1)
    cfg = CLIPConfig()
    source = PairSource(cfg)
    image_tower, text_tower, criterion = ImageTower(cfg), TextTower(cfg), SymmetricInfoNCE()
    modules = [image_tower, text_tower, criterion]
    optimizer = torch.optim.AdamW(
        itertools.chain(image_tower.parameters(), text_tower.parameters()),  # expect: param-not-in-optimizer
        lr=cfg.lr,
        weight_decay=0.01,
    )
    for epoch in range(cfg.epochs):
        total = 0.0
        for _ in range(cfg.steps):
            image, tokens = source.batch()
            for m in modules:
                m.zero_grad()
            loss = criterion(image_tower(image), text_tower(tokens))
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / cfg.steps:.4f} scale {criterion.log_scale.exp().item():.3f}")


if __name__ == "__main__":
    main()
