"""Clipping and unscaling are in the wrong order, so what the clipping leaves is divided by the scale: the
gradients are 1/4096 of what they should be, and the weights move 1/3000 as far.
"""

import contextlib
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class TrainConfig:
    lr: float = 0.2
    grad_clip: float = 1.0
    amp: bool = True
    accum: int = 2
    scaler_kwargs: dict = field(default_factory=lambda: {"init_scale": 2.0**12, "growth_interval": 500})


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, 16), nn.GELU(), nn.Linear(16, tokens))
        self.channel_mlp = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mlp(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, tokens=9, channels=6, dim=16, classes=3):
        super().__init__()
        self.embed = nn.Linear(channels, dim)
        self.blocks = nn.Sequential(MixerBlock(tokens, dim), MixerBlock(tokens, dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)).mean(1))


class Trainer:
    def __init__(self, model: nn.Module, cfg: TrainConfig):
        self.model, self.cfg = model, cfg
        self.opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        self.scaler = torch.amp.GradScaler("cpu", enabled=cfg.amp, **cfg.scaler_kwargs)

    def autocast(self):
        return torch.autocast("cpu", torch.float16) if self.cfg.amp else contextlib.nullcontext()

    def forward_backward(self, x: Tensor, y: Tensor) -> float:
        with self.autocast():
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss / self.cfg.accum).backward()
        return loss.item()

    def optimizer_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.grad_clip)  # expect: amp-scaler-misuse
        self.scaler.unscale_(self.opt)  # expect: amp-scaler-misuse
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()

    def fit(self, batches) -> list[float]:
        losses = []
        for i, (x, y) in enumerate(batches, start=1):
            losses.append(self.forward_backward(x, y))
            if i % self.cfg.accum == 0:
                self.optimizer_step()
        return losses


if __name__ == "__main__":
    torch.manual_seed(28)
    y = torch.randint(3, (8, 16))
    x = torch.randn(8, 16, 9, 6) + torch.nn.functional.one_hot(y, 6).unsqueeze(2) * 3.0
    trainer = Trainer(Mixer(), TrainConfig())
    for epoch in range(2):
        losses = trainer.fit(zip(x, y))
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
