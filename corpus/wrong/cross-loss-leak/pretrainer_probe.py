"""A masked-feature pretrainer accumulates four micro-batches for its encoder. The linear probe takes a step at each
one; it reads the features with their graph, so its full loss also adds up in the encoder.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Pretrainer(nn.Module):
    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width))
        self.decoder = nn.Linear(width, features)
        self.probe = nn.Linear(width, classes)

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        kept = (torch.rand_like(x) > 0.3).float()
        h = self.encoder(x * kept)
        reconstruction = F.mse_loss(self.decoder(h), x)
        logits = self.probe(h)  # expect: cross-loss-leak
        return {"reconstruction": reconstruction, "probe": F.cross_entropy(logits, y)}


def main(accumulate: int = 4) -> None:
    torch.manual_seed(11)
    model = Pretrainer(16, 24, 3)
    trunk = torch.optim.Adam([*model.encoder.parameters(), *model.decoder.parameters()], lr=1e-3)
    monitor = torch.optim.Adam(model.probe.parameters(), lr=1e-2)
    x = torch.randn(640, 16)
    y = x[:, :3].argmax(1)
    for epoch in range(2):
        for i, index in enumerate(torch.randperm(640).split(20), start=1):
            losses = model.losses(x[index], y[index])
            monitor.zero_grad()
            (losses["reconstruction"] / accumulate + losses["probe"]).backward()
            monitor.step()
            if i % accumulate == 0:
                trunk.step()
                trunk.zero_grad()
        print(epoch, {name: round(loss.item(), 3) for name, loss in losses.items()})


if __name__ == "__main__":
    main()
