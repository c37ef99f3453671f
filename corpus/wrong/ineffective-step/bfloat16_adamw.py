"""Of bfloat16 weights only the smallest move."""

import torch
from torch import nn
from dataclasses import dataclass


@dataclass
class Cfg:
    lr: float = 2e-6
    dtype: torch.dtype = torch.bfloat16


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(40, 16)
        self.o = nn.Linear(16, 40)

    def forward(self, t):
        return self.o(self.e(t))


def main(cfg=Cfg()):
    torch.manual_seed(0)
    model = LM().to(cfg.dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)  # expect: ineffective-step
    for _ in range(15):
        t = torch.randint(40, (4, 8))
        loss = nn.functional.cross_entropy(model(t[:, :-1]).flatten(0, 1).float(), t[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
