"""Losses over the representations of a whole batch, and two encoders for them, shared by several tests."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradgate import losses
from tests.tensors import on_device, randn, tensor

FEATURES = 5
Representations = dict[str, Tensor]


class Towers(nn.Module):
    """Two encoders with a layer in common, a router, and a temperature that only the loss uses."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.common = nn.Linear(FEATURES, 8)
        self.left = nn.Sequential(nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4))
        self.right = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4))
        self.router = nn.Linear(8, 3)
        self.log_temperature = nn.Parameter(tensor(-1.0))
        on_device(self)

    def forward(self, x: Tensor) -> Representations:
        hidden = self.common(x)
        routed = self.router(hidden).softmax(1)
        return {
            "left": F.normalize(self.left(hidden), dim=1),
            "right": F.normalize(self.right(self.common(x.sin())), dim=1),
            "group": (x[:, 0] > 0).long(),
            "chosen": F.one_hot(routed.argmax(1), 3).sum(0)[None],  # of the micro-batch: [1, 3]
            "probability": routed.sum(0)[None],
            "square": hidden.square().sum(),  # of the micro-batch: a scalar
        }


Loss = Callable[[Towers, Representations], Tensor]


def contrastive(model: Towers, z: Representations) -> Tensor:
    return losses.clip_loss(z["left"], z["right"], temperature=model.log_temperature.exp())


def load_balancing(model: Towers, z: Representations) -> Tensor:
    """Switch Transformer, equation 4: the share of tokens times the mean probability, over experts."""
    count = len(z["left"])
    share, probability = z["chosen"].sum(0) / count, z["probability"].sum(0) / count
    return 3 * (share * probability).sum() + 0.01 * z["square"].sum() / count


def cross_correlation(model: Towers, z: Representations) -> Tensor:
    """Barlow Twins: each feature normalized over the whole batch."""
    left, right = (
        (side - side.mean(0)) / (side.var(0, unbiased=False) + 1e-2).sqrt()
        for side in (z["left"], z["right"])
    )
    crossed = left.T @ right / len(left)
    return (crossed - torch.eye(4).to(crossed)).square().sum()


def hardest_triplets(model: Towers, z: Representations) -> Tensor:
    """The farthest item of the same group, and the nearest of another, for each item."""
    apart = torch.cdist(z["left"], z["right"])
    same = z["group"][:, None] == z["group"]
    farthest = apart.masked_fill(~same, 0).amax(1)
    nearest = apart.masked_fill(same, 1e3).amin(1)
    return F.softplus(farthest - nearest.clamp(max=3)).mean()


LOSSES: dict[str, Loss] = {
    "contrastive": contrastive,
    "load balancing": load_balancing,
    "cross-correlation": cross_correlation,
    "hardest triplets": hardest_triplets,
}


def batch(rows: int) -> Tensor:
    torch.manual_seed(1)
    return randn(rows, FEATURES)


def joined(parts: Sequence[Representations]) -> Representations:
    """The concatenation that a loss sees."""
    return {
        key: torch.cat([part[key] if part[key].dim() else part[key][None] for part in parts])
        for key in parts[0]
    }


def gradient(loss: Tensor, model: nn.Module) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


def in_one_graph(model: Towers, loss_fn: Loss, parts: Sequence[Tensor]) -> list[Tensor]:
    """The slow truth: every micro-batch's graph is held until the loss of them all has been differentiated."""
    return gradient(loss_fn(model, joined([model(part) for part in parts])), model)


def sizes_of(cut: Sequence[int]) -> list[Any]:
    return list(batch(sum(cut)).split(list(cut)))
