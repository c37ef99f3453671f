"""Losses of all forms: torch's own, written by hand, counted and not, means and sums."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.fuzz.data import IGNORED, Fields
from tests.laws.fuzz.models import CLASSES, Net

ITEM_WEIGHTS = torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64)


@dataclass(frozen=True)
class Loss:
    """One form of a loss.

    Attributes:
        value: of logits, fields and the net.
        items: what a mean was divided by.
        given: the count is handed to gradgate, as it is or as a number; or left out.
        words: of words, too: padding that a plan trims takes no part in it.
        may_refuse: left out, the count may be asked for (a CountError); a wrong one may not be guessed.
    """

    value: Callable[[Tensor, Fields, Net], Tensor]
    items: Callable[[Fields], Tensor]
    given: str = "left out"
    reduction: str = "mean"
    may_refuse: bool = False
    words: bool = True


def valid(f: Fields) -> Tensor:
    return f["y"] != IGNORED


def tokens(f: Fields) -> Tensor:
    return valid(f).sum()


def samples(f: Fields) -> Tensor:
    return torch.tensor(len(f["y"]))


def class_weights(f: Fields) -> Tensor:
    return ITEM_WEIGHTS[f["y"][valid(f)]].sum()


def sample_weights(f: Fields) -> Tensor:
    return f["weight"].double().sum()


def _cross_entropy(logits: Tensor, f: Fields, **options: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), f["y"].flatten(), **options)


def _by_item(logits: Tensor, f: Fields) -> Tensor:
    return _cross_entropy(logits, f, reduction="none").view(f["y"].shape)


def _by_sample(logits: Tensor, f: Fields) -> Tensor:
    """A mean over the valid items of each sample: ``[samples]``."""
    shape = len(f["y"]), -1
    items = valid(f).reshape(shape).sum(1) if f["y"].numel() else torch.zeros(0)
    summed = _by_item(logits, f).reshape(shape).sum(1) if f["y"].numel() else logits.flatten(1).sum(1)
    return summed / items.clamp(min=1)


def _one_hot(logits: Tensor, f: Fields) -> tuple[Tensor, Tensor]:
    chosen = valid(f)
    return logits[chosen], F.one_hot(f["y"][chosen], CLASSES).to(logits.dtype)


def _all(logits: Tensor, f: Fields) -> tuple[Tensor, Tensor]:
    return logits, F.one_hot(f["y"].clamp(min=0), CLASSES).to(logits.dtype)


def elements(f: Fields) -> Tensor:
    return torch.tensor(f["y"].numel() * CLASSES)


def _kl(logits: Tensor, f: Fields, reduction: str) -> Tensor:
    chosen, hot = _one_hot(logits, f)
    return F.kl_div(chosen.log_softmax(-1), (hot + 0.1) / (1 + 0.1 * CLASSES), reduction=reduction)


def _uncertain(logits: Tensor, f: Fields, net: Net) -> Tensor:
    """Two tasks, each sample's losses weighed by what is learned: ``(loss * exp(-s) + s).mean()``."""
    per_sample = _by_sample(logits, f)
    per_task = torch.stack([per_sample, per_sample.square()], -1)
    return (per_task * (-net.log_scales).exp() + net.log_scales).mean()


def _penalty(logits: Tensor, f: Fields, net: Net) -> Tensor:
    """The gradient of a gradient."""
    by_sample = _by_sample(logits, f)
    if not logits.requires_grad:
        return by_sample.mean()
    (slope,) = torch.autograd.grad(by_sample.sum(), logits, create_graph=True)
    return (slope.flatten(1).square().sum(1) + by_sample).mean()


def _classes(logits: Tensor, f: Fields) -> Tensor:
    """The mean of the classes' means."""
    chosen, items = logits[valid(f)].square().sum(-1), f["y"][valid(f)]
    sums = torch.zeros(CLASSES, dtype=chosen.dtype).index_add(0, items, chosen)
    return (sums / items.bincount(minlength=CLASSES).clamp(min=1)).mean()


def _dice(logits: Tensor, f: Fields) -> Tensor:
    chosen, hot = _one_hot(logits, f)
    likely = chosen.softmax(-1)
    return (1 - 2 * (likely * hot).sum(0) / (likely + hot).sum(0).clamp(min=1e-3)).mean()


def _flat(logits: Tensor) -> Tensor:
    return logits.flatten(1)


# z: logits, [samples, ..., classes]; f: fields; n: the net.
LOSSES: dict[str, Loss] = {
    "cross entropy": Loss(lambda z, f, n: _cross_entropy(z, f), tokens),
    "cross entropy, counted": Loss(lambda z, f, n: _cross_entropy(z, f), tokens, "number"),
    "cross entropy, counted on a device": Loss(lambda z, f, n: _cross_entropy(z, f), tokens, "tensor"),
    "cross entropy, weighted": Loss(
        lambda z, f, n: _cross_entropy(z, f, weight=ITEM_WEIGHTS.to(z.dtype)), class_weights
    ),
    "cross entropy, summed": Loss(
        lambda z, f, n: _cross_entropy(z, f, reduction="sum"), tokens, "number", "sum"
    ),
    "nll": Loss(lambda z, f, n: F.nll_loss(z.flatten(0, -2).log_softmax(-1), f["y"].flatten()), tokens),
    "mse": Loss(lambda z, f, n: F.mse_loss(*_all(z, f)), elements, words=False),
    "smooth l1": Loss(lambda z, f, n: F.smooth_l1_loss(*_all(z, f)), elements, words=False),
    "huber": Loss(lambda z, f, n: F.huber_loss(*_all(z, f)), elements, words=False),
    "bce": Loss(lambda z, f, n: F.binary_cross_entropy_with_logits(*_all(z, f)), elements, words=False),
    "soft margin": Loss(lambda z, f, n: F.soft_margin_loss(*_all(z, f)), elements, words=False),
    "masked by hand": Loss(
        lambda z, f, n: (_by_item(z, f) * valid(f)).sum() / valid(f).sum().clamp(min=1), tokens, "tensor"
    ),
    "summed by hand": Loss(lambda z, f, n: _by_item(z, f).sum(), tokens, "number", "sum"),
    "smoothed": Loss(lambda z, f, n: _cross_entropy(z, f, label_smoothing=0.1), tokens),
    "smoothed, counted": Loss(lambda z, f, n: _cross_entropy(z, f, label_smoothing=0.1), tokens, "number"),
    "means of samples, counted": Loss(lambda z, f, n: _by_sample(z, f).mean(), samples, "number"),
    "weighted, counted": Loss(
        lambda z, f, n: (_by_sample(z, f) * f["weight"]).sum() / f["weight"].sum(), sample_weights, "tensor"
    ),
    "kl, batchmean, counted": Loss(lambda z, f, n: _kl(z, f, "batchmean"), tokens, "number"),
    "uncertain, counted": Loss(_uncertain, samples, "number"),
    "penalty, counted": Loss(_penalty, samples, "number"),
    # The count is left out and may be asked for.
    "means of samples": Loss(lambda z, f, n: _by_sample(z, f).mean(), samples, may_refuse=True),
    "means of items": Loss(lambda z, f, n: _by_item(z, f)[valid(f)].mean(), tokens, may_refuse=True),
    "squares": Loss(lambda z, f, n: z[valid(f)].square().mean(), tokens, may_refuse=True),
    "l1": Loss(lambda z, f, n: F.l1_loss(*_one_hot(z, f)), tokens, may_refuse=True),
    "masked by hand, uncounted": Loss(
        lambda z, f, n: (_by_item(z, f) * valid(f)).sum() / valid(f).sum().clamp(min=1),
        tokens,
        may_refuse=True,
    ),
    "masked mean": Loss(lambda z, f, n: (_by_item(z, f) * valid(f)).mean(), samples, may_refuse=True),
    "with a term": Loss(
        lambda z, f, n: _cross_entropy(z, f) + 0.1 * n.head.weight.square().sum(), tokens, may_refuse=True
    ),
    "two terms": Loss(
        lambda z, f, n: _cross_entropy(z, f) + 0.1 * z[valid(f)].square().mean(), tokens, may_refuse=True
    ),
    "two columns": Loss(
        lambda z, f, n: _flat(z)[:, 0].square().mean() + _flat(z)[:, 1].mean(), samples, may_refuse=True
    ),
    "uncertain": Loss(_uncertain, samples, may_refuse=True),
    "transposed": Loss(lambda z, f, n: _flat(z).square().t().mean(1).mean(), samples, may_refuse=True),
    "moved": Loss(lambda z, f, n: _flat(z).square().movedim(0, 1).mean(-1).mean(), samples, may_refuse=True),
    "columns first": Loss(lambda z, f, n: _flat(z).square().mean(0).mean(), samples, may_refuse=True),
    "columns first, nonlinear": Loss(
        lambda z, f, n: _flat(z).mean(0).square().mean(), samples, may_refuse=True
    ),
    "einsum": Loss(
        lambda z, f, n: torch.einsum("nc,n->c", _flat(z), f["weight"].to(z.dtype)).mean(),
        samples,
        may_refuse=True,
    ),
    "matmul": Loss(lambda z, f, n: (f["weight"].to(z.dtype) @ _flat(z)).mean(), samples, may_refuse=True),
    "classes": Loss(lambda z, f, n: _classes(z, f), tokens, may_refuse=True),
    "weights normed by their sum": Loss(
        lambda z, f, n: (_by_sample(z, f) * f["weight"] / f["weight"].sum()).sum(),
        sample_weights,
        may_refuse=True,
    ),
    "weights normed by their mean": Loss(
        lambda z, f, n: (_by_sample(z, f) * f["weight"] / f["weight"].mean()).mean(),
        sample_weights,
        may_refuse=True,
    ),
    "dice": Loss(lambda z, f, n: _dice(z, f), tokens, may_refuse=True),
    "kl, batchmean": Loss(lambda z, f, n: _kl(z, f, "batchmean"), tokens, may_refuse=True),
    "root": Loss(lambda z, f, n: _flat(z).square().mean().sqrt(), samples, may_refuse=True),
    "centred": Loss(lambda z, f, n: (_flat(z) - _flat(z).mean(0)).square().mean(), samples, may_refuse=True),
    "largest": Loss(lambda z, f, n: _flat(z).amax(0).mean() if len(z) else z.sum(), samples, may_refuse=True),
    "spread": Loss(
        lambda z, f, n: (_flat(z).square().mean(0) - _flat(z).mean(0).square()).mean(),
        samples,
        may_refuse=True,
    ),
    "pairs": Loss(
        lambda z, f, n: (_flat(z)[:, None] - _flat(z)[None]).square().mean(), samples, may_refuse=True
    ),
    "softmax over samples": Loss(
        lambda z, f, n: (_flat(z).softmax(0) * _flat(z)).mean(), samples, may_refuse=True
    ),
    "stacked": Loss(
        lambda z, f, n: torch.stack([_cross_entropy(z, f), _flat(z).mean()]).mean(), tokens, may_refuse=True
    ),
    "divided": Loss(lambda z, f, n: _cross_entropy(z, f) / len(f["y"]), tokens, may_refuse=True),
    "dot": Loss(
        lambda z, f, n: torch.dot(_by_sample(z, f), f["weight"].to(z.dtype)), samples, may_refuse=True
    ),
}
SECOND = ("cross entropy, counted", "means of samples, counted", "mse", "cross entropy, summed")
"""What comes as a second loss beside the first."""
