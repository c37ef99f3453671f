"""Losses as people write them, each with the count that its graph proves, or None where it has to be asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tensors import labels, on_device, rand, randn

CLASSES, TIME, IGNORED = 4, 5, -100


@dataclass
class Batch:
    """Six samples of several kinds."""

    x: Tensor  # [samples, 3]
    z: Tensor  # [samples, 3]
    y: Tensor  # [samples], classes
    t: Tensor  # [samples, CLASSES], numbers
    bits: Tensor  # [samples, CLASSES], of 0 and 1
    weight: Tensor  # [samples]
    seq: Tensor  # [samples, TIME, 3]
    words: Tensor  # [samples, TIME], classes
    tokens: Tensor  # [samples, TIME], classes, some of them IGNORED
    image: Tensor  # [samples, 2, 6, 6]
    pixels: Tensor  # [samples, 6, 6], classes

    def __len__(self) -> int:
        return len(self.x)

    def split(self, sizes: Sequence[int]) -> list["Batch"]:
        columns = [getattr(self, field.name).split(list(sizes)) for field in fields(self)]
        return [Batch(*row) for row in zip(*columns, strict=True)]


def batch() -> Batch:
    torch.manual_seed(3)
    tokens = torch.randint(0, CLASSES, (6, TIME)).masked_fill(torch.rand(6, TIME) < 0.4, IGNORED)
    tokens[:, 0] = 1
    return Batch(
        *(randn(6, 3), randn(6, 3), labels([0, 1, 2, 3, 0, 2]), randn(6, CLASSES)),
        *((rand(6, CLASSES) > 0.5).to(randn(1).dtype), rand(6), randn(6, TIME, 3)),
        *(labels(torch.randint(0, CLASSES, (6, TIME)).tolist()), labels(tokens.tolist())),
        *(randn(6, 2, 6, 6), labels(torch.randint(0, CLASSES, (6, 6, 6)).tolist())),
    )


class Net(nn.Module):
    """What losses are taken of. Nothing in it couples samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, CLASSES))
        self.head = nn.Linear(3, CLASSES, bias=False)
        self.one = nn.Linear(3, 1)
        self.table = nn.Embedding(CLASSES, CLASSES)
        self.conv = nn.Conv2d(2, CLASSES, 3, padding=1)
        self.logs = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.scale = nn.Parameter(torch.tensor(0.4))
        self.square = nn.Parameter(torch.randn(CLASSES, CLASSES))
        self.frozen = nn.Linear(CLASSES, CLASSES).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def net() -> Net:
    torch.manual_seed(4)
    return on_device(Net())


class Opaque(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 2


class Gathered(torch.autograd.Function):
    """What DataParallel's gather does with the mean losses of two devices."""

    @staticmethod
    def forward(ctx: object, *losses: Tensor) -> Tensor:
        return torch.stack(losses)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient)


def gathered(m: Net, b: Batch) -> Tensor:
    """Two devices: the first gets what is larger."""
    first, second = (len(b) + 1) // 2, len(b) // 2
    parts = b.split([first, second]) if second else [b, b]
    return Gathered.apply(*(F.mse_loss(m(part.x), part.t) for part in parts)).mean()


def per_task(m: Net, b: Batch) -> Tensor:
    return torch.stack([F.mse_loss(m(b.x), b.t), F.cross_entropy(m.head(b.z), b.y)])


def ce(m: Net, b: Batch) -> Tensor:
    return F.cross_entropy(m(b.x), b.y, reduction="none")


def token_ce(m: Net, b: Batch, **options: object) -> Tensor:
    return F.cross_entropy(m(b.seq).flatten(0, 1), b.tokens.flatten(), **options)  # type: ignore[arg-type]


def in_turn(m: Net, b: Batch) -> list[Tensor]:
    """The outputs of a loop over time."""
    return [m(step) for step in b.seq.unbind(1)]


Loss = Callable[[Net, Batch], Tensor]
SAMPLES, ELEMENTS = 6, 24

CLASS_WEIGHTS = (0.5, 1.0, 2.0, 4.0)


def class_weights(b: Batch) -> Tensor:
    return torch.tensor(CLASS_WEIGHTS, dtype=b.x.dtype, device=b.x.device)


def weight_of_pixels() -> float:
    """The sum of the class weights of all pixels but those of class 3."""
    with torch.random.fork_rng():
        pixels = batch().pixels
    return sum(CLASS_WEIGHTS[pixel] for pixel in pixels.flatten().tolist() if pixel != 3)


def smoothed_by_hand(m: Net, b: Batch, ignored: Tensor, divisor: float, share: float = 0.9) -> Tensor:
    """Label smoothing as torch computes it, over other items."""
    times = torch.ops.aten.mul.Scalar  # Python's `*` makes another node
    logs = m(b.seq).transpose(1, 2).log_softmax(1)
    over_classes = logs.sum(1).neg().masked_fill(ignored, 0).sum() / torch.tensor(divisor)
    return times(F.nll_loss(logs, b.tokens), share) + times(over_classes, 0.1 / CLASSES)


SMOOTHED: dict[str, tuple[Callable[..., Tensor], float]] = {
    "samples": (lambda m, b, **kw: F.cross_entropy(m(b.x), b.y, **kw), SAMPLES),
    "module": (lambda m, b, **kw: nn.CrossEntropyLoss(**kw)(m.head(b.x), b.y), SAMPLES),
    "ignored": (lambda m, b, **kw: F.cross_entropy(m(b.x), b.y, ignore_index=0, **kw), 4),
    "class weights": (
        lambda m, b, **kw: F.cross_entropy(m(b.x), b.y, weight=class_weights(b), **kw),
        sum(CLASS_WEIGHTS) + 0.5 + 2,
    ),
    "class weights, ignored": (
        lambda m, b, **kw: F.cross_entropy(m(b.x), b.y, weight=class_weights(b), ignore_index=0, **kw),
        sum(CLASS_WEIGHTS) + 2 - 0.5,
    ),
    "tokens": (lambda m, b, **kw: token_ce(m, b, **kw), 18),
    "classes in the middle": (
        lambda m, b, **kw: F.cross_entropy(m(b.seq).transpose(1, 2), b.tokens, **kw),
        18,
    ),
    "segmentation": (lambda m, b, **kw: F.cross_entropy(m.conv(b.image), b.pixels, **kw), 6 * 36),
    "segmentation, ignored and weighted": (
        lambda m, b, **kw: F.cross_entropy(
            m.conv(b.image), b.pixels, weight=class_weights(b), ignore_index=3, **kw
        ),
        weight_of_pixels(),
    ),
}

READ: dict[str, tuple[Loss, float]] = {
    # torch's own
    "cross entropy": (lambda m, b: F.cross_entropy(m(b.x), b.y), SAMPLES),
    "cross entropy, one linear layer": (lambda m, b: F.cross_entropy(m.head(b.x), b.y), SAMPLES),
    "cross entropy, ignored": (lambda m, b: F.cross_entropy(m(b.x), b.y, ignore_index=0), 4),
    "cross entropy, class weights": (
        lambda m, b: F.cross_entropy(m(b.x), b.y, weight=class_weights(b)),
        sum(CLASS_WEIGHTS) + 0.5 + 2,
    ),
    "cross entropy, flat tokens": (lambda m, b: token_ce(m, b), 18),
    "cross entropy, flat view": (
        lambda m, b: F.cross_entropy(m(b.seq).view(-1, CLASSES), b.words.view(-1)),
        SAMPLES * TIME,
    ),
    "cross entropy, one word of each text": (
        lambda m, b: F.cross_entropy(m(b.seq)[torch.arange(len(b.y), device=b.y.device), b.y % TIME], b.y),
        SAMPLES,
    ),
    "picked by range": (lambda m, b: -m(b.x).log_softmax(1)[range(len(b)), b.y].mean(), SAMPLES),
    "cross entropy, time first": (
        lambda m, b: F.cross_entropy(m(b.seq.transpose(0, 1)).reshape(-1, CLASSES), b.words.t().reshape(-1)),
        SAMPLES * TIME,
    ),
    "cross entropy, segmentation": (lambda m, b: F.cross_entropy(m.conv(b.image), b.pixels), 6 * 36),
    "cross entropy, upsampled": (
        lambda m, b: F.cross_entropy(
            F.interpolate(F.max_pool2d(m.conv(b.image), 2), scale_factor=2, mode="bilinear"), b.pixels
        ),
        6 * 36,
    ),
    "cross entropy, scaled logits": (lambda m, b: F.cross_entropy(m(b.x) * m.scale.exp(), b.y), SAMPLES),
    "cross entropy, tied weights": (
        lambda m, b: F.cross_entropy((m(b.x) @ m.table.weight.t()).double(), b.y),
        SAMPLES,
    ),
    "cross entropy, frozen head": (lambda m, b: F.cross_entropy(m.frozen(m(b.x)), b.y), SAMPLES),
    "cross entropy, low rank": (
        lambda m, b: F.cross_entropy(m.head(b.x) + 0.5 * m(b.x), b.y),
        SAMPLES,
    ),
    **{
        f"label smoothing of {smoothing}, {how}": (
            lambda m, b, smoothing=smoothing, loss=loss: loss(m, b, label_smoothing=smoothing),
            count,
        )
        for smoothing in (0.1, 1.0)
        for how, (loss, count) in SMOOTHED.items()
    },
    "nll": (lambda m, b: F.nll_loss(F.log_softmax(m(b.x), dim=1), b.y), SAMPLES),
    "nll, log of softmax": (lambda m, b: F.nll_loss(m(b.x).softmax(1).log(), b.y), SAMPLES),
    "mse": (lambda m, b: F.mse_loss(m(b.x), b.t), ELEMENTS),
    "mse, squeezed": (lambda m, b: F.mse_loss(m.one(b.x).squeeze(-1), b.weight), SAMPLES),
    "mse, one column": (lambda m, b: F.mse_loss(m.one(b.x)[:, 0], b.weight), SAMPLES),
    "mse, of images": (lambda m, b: F.mse_loss(m.conv(b.image)[:, :2].sigmoid(), b.image), 6 * 2 * 36),
    "mse, action values": (
        lambda m, b: F.mse_loss(m(b.x).gather(1, b.y[:, None]), b.weight[:, None]),
        SAMPLES,
    ),
    "mse, factorisation": (lambda m, b: F.mse_loss((m(b.x) * m.table(b.y)).sum(1), b.weight), SAMPLES),
    "mse, between two outputs": (lambda m, b: F.mse_loss(m(b.x), m.head(b.z)), ELEMENTS),
    "mse, distilled": (lambda m, b: F.mse_loss(m(b.x), m.head(b.x).detach()), ELEMENTS),
    "l1": (lambda m, b: F.l1_loss(m(b.x), b.t), ELEMENTS),
    "huber": (lambda m, b: F.huber_loss(m(b.x), b.t), ELEMENTS),
    "bce": (lambda m, b: F.binary_cross_entropy(m(b.x).sigmoid(), b.bits), ELEMENTS),
    "bce with logits": (lambda m, b: F.binary_cross_entropy_with_logits(m(b.x), b.bits), ELEMENTS),
    "bce with logits, positive weights": (
        lambda m, b: F.binary_cross_entropy_with_logits(
            m(b.x), b.bits, pos_weight=torch.full((CLASSES,), 3.0, dtype=b.x.dtype)
        ),
        ELEMENTS,
    ),
    "multi margin": (lambda m, b: F.multi_margin_loss(m(b.x), b.y), SAMPLES),
    "multilabel margin": (
        lambda m, b: F.multilabel_margin_loss(m(b.x), b.bits.long() * torch.arange(CLASSES)),
        SAMPLES,
    ),
    "triplet": (lambda m, b: F.triplet_margin_loss(m(b.x), m(b.z), m(b.x - b.z)), SAMPLES),
    # means over what was not reduced
    "squares": (lambda m, b: (m(b.x) - b.t).pow(2).mean(), ELEMENTS),
    "squares, summed over features": (lambda m, b: ((m(b.x) - b.t) ** 2).sum(1).mean(), SAMPLES),
    "squares, mean over features": (lambda m, b: ((m(b.x) - b.t) ** 2).mean(dim=1).mean(), SAMPLES),
    "squares, both dimensions": (lambda m, b: ((m(b.x) - b.t) ** 2).mean((0, 1)), ELEMENTS),
    "squares, transposed, then over features": (
        lambda m, b: (m(b.x) - b.t).square().t().sum(0).mean(),
        SAMPLES,
    ),
    "squares, time first": (lambda m, b: m(b.seq.transpose(0, 1)).square().mean(), SAMPLES * TIME * CLASSES),
    "squares, moved dimension": (
        lambda m, b: m(b.seq).square().movedim(1, 0).mean(),
        SAMPLES * TIME * CLASSES,
    ),
    "distances": (lambda m, b: (m(b.x) - b.t).norm(dim=1).mean(), SAMPLES),
    "mean of unreduced": (lambda m, b: ce(m, b).mean(), SAMPLES),
    "mean of unreduced bce, summed over classes": (
        lambda m, b: F.binary_cross_entropy_with_logits(m(b.x), b.bits, reduction="none").sum(1).mean(),
        SAMPLES,
    ),
    "focal": (lambda m, b: ((1 - torch.exp(-ce(m, b))) ** 2 * ce(m, b)).mean(), SAMPLES),
    "one learned temperature": (lambda m, b: (ce(m, b) * torch.exp(-m.scale) + m.scale).mean(), SAMPLES),
    "a penalty in the mean": (lambda m, b: (ce(m, b) + 0.1 * m.head.weight.pow(2).sum()).mean(), SAMPLES),
    "two unreduced, added": (lambda m, b: (ce(m, b) + (m.head(b.x) - b.t).square().sum(1)).mean(), SAMPLES),
    "cosine similarity": (lambda m, b: -F.cosine_similarity(m(b.x), m.head(b.z)).mean(), SAMPLES),
    "pairwise distance": (lambda m, b: F.pairwise_distance(m(b.x), m.head(b.z)).mean(), SAMPLES),
    "critic": (lambda m, b: -m.one(b.x).mean(), SAMPLES),
    "picked by gather": (lambda m, b: -m(b.x).log_softmax(1).gather(1, b.y[:, None]).mean(), SAMPLES),
    "normal": (
        lambda m, b: -torch.distributions.Normal(m(b.x), m.head(b.z).exp()).log_prob(b.t).mean(),
        ELEMENTS,
    ),
    "mean and variance of one head": (
        lambda m, b: (lambda mu, log: ((mu - b.t[:, :2]).square() * (-log).exp() + log).mean())(
            *m(b.x).chunk(2, dim=-1)
        ),
        2 * SAMPLES,
    ),
    "earth mover": (
        lambda m, b: (m(b.x).softmax(1).cumsum(1) - m.head(b.z).softmax(1).cumsum(1)).abs().sum(1).mean(),
        SAMPLES,
    ),
    "a parameter and data": (lambda m, b: (m.scale * b.t - b.bits).square().mean(), ELEMENTS),
    "regression by hand": (
        lambda m, b: ((b.x * m.one.weight).sum(1) + m.one.bias - b.weight).square().mean(),
        SAMPLES,
    ),
    "polynomial": (
        lambda m, b: (
            (m.scale + m.scale.exp() * b.weight + m.scale.sin() * b.weight**2 - b.x[:, 0]).square().mean()
        ),
        SAMPLES,
    ),
}

ASKED: dict[str, Loss] = {
    # over something else than the items
    "uncertainty weights": lambda m, b: (per_task(m, b) * torch.exp(-m.logs) + m.logs).mean(),
    "tasks": lambda m, b: per_task(m, b).mean(),
    "tasks through a layer": lambda m, b: (per_task(m, b)[None] * m.logs).mean(),
    "one number": lambda m, b: F.cross_entropy(m(b.x), b.y).mean(),
    "gathered means": gathered,
    "columns' means": lambda m, b: m(b.x).square().mean(0).mean(),
    "columns' sums": lambda m, b: m(b.x).square().sum(0).mean(),
    "columns' norms": lambda m, b: m(b.x).norm(dim=0).mean(),
    "columns' deviations": lambda m, b: (
        F.relu(1 - m(b.x).std(0)).mean() if len(b) > 1 else m(b.x).sum(0).mean()
    ),
    "sum of two columns' means": lambda m, b: (m(b.x).mean(0) + m.head(b.z).mean(0)).mean(),
    "transposed, then rows' means": lambda m, b: m(b.x).square().t().mean(1).mean(),
    "moved dimension, then sums": lambda m, b: m(b.x).square().movedim(0, 1).sum(-1).mean(),
    "time first, then sums over samples": lambda m, b: (
        m(b.seq.transpose(0, 1)).square().sum(-1).sum(1).mean()
    ),
    "time first, then means over samples": lambda m, b: (
        m(b.seq.transpose(0, 1)).square().sum(-1).mean(1).mean()
    ),
    "sums over time": lambda m, b: m(b.seq).square().sum(-1).sum(1).mean(),
    "means over time": lambda m, b: token_ce(m, b, reduction="none").view(len(b), TIME).mean(1).mean(),
    "sequences' own means": lambda m, b: (
        token_ce(m, b, reduction="none").view(len(b), TIME).sum(1) / (b.tokens != IGNORED).sum(1)
    ).mean(),
    "flattened features, then sums": lambda m, b: m(b.x).square().flatten().view(2, -1).sum(1).mean(),
    "one sample": lambda m, b: F.cross_entropy(m(b.x)[0], b.y[0]),
    "without the last sample": lambda m, b: m(b.x)[:-1].square().mean() if len(b) > 1 else m(b.x).sum(),
    "first four samples": lambda m, b: m(b.x)[:4].square().mean(),
    # samples that are mixed
    "einsum over samples": lambda m, b: torch.einsum("bf,bg->fg", m(b.x), m.head(b.z)).square().mean(),
    "einsum with weights": lambda m, b: torch.einsum("b,bf->f", b.weight, m(b.x)).square().mean(),
    "matmul over samples": lambda m, b: (b.weight @ m(b.x)).square().mean(),
    "matmul of samples": lambda m, b: (m(b.x) @ m.head(b.z).t()).square().mean(),
    "per class": lambda m, b: (
        torch.zeros(CLASSES, dtype=b.x.dtype).index_add(0, b.y, ce(m, b))
        / torch.bincount(b.y, minlength=CLASSES).clamp(min=1)
    ).mean(),
    "per class, scattered": lambda m, b: (
        torch.zeros(CLASSES, dtype=b.x.dtype).scatter_add(0, b.y, ce(m, b)).mean()
    ),
    "per class, one hot": lambda m, b: (F.one_hot(b.y, CLASSES).to(b.x.dtype).t() @ m(b.x)).square().mean(),
    "dice": lambda m, b: (
        1 - (2 * (m(b.x).sigmoid() * b.bits).sum(0) / (m(b.x).sigmoid().sum(0) + b.bits.sum(0))).mean()
    ),
    "dice, mean of losses": lambda m, b: (
        1 - (2 * (m(b.x).sigmoid() * b.bits).sum(0) + 1) / (m(b.x).sigmoid() + b.bits).sum(0).add(1)
    ).mean(),
    "dice, of each sample": lambda m, b: (
        1 - (2 * (m(b.x).sigmoid() * b.bits).sum(1) + 1) / (m(b.x).sigmoid() + b.bits).sum(1).add(1)
    ).mean(),
    "dice, of all": lambda m, b: (
        1 - 2 * (m(b.x).sigmoid() * b.bits).sum() / (m(b.x).sigmoid().sum() + b.bits.sum())
    ),
    "contrastive": lambda m, b: F.cross_entropy(m(b.x) @ m.head(b.z).t(), torch.arange(len(b))),
    "contrastive, stopped keys": lambda m, b: F.cross_entropy(
        m(b.x) @ m.head(b.z).detach().t(), torch.arange(len(b))
    ),
    "listwise, viewed": lambda m, b: F.cross_entropy(m.one(b.x).view(1, -1), labels([0])),
    "distances of all pairs": lambda m, b: torch.cdist(m(b.x), m.head(b.z)).mean(),
    "differences of all pairs, unsqueezed": lambda m, b: (m(b.x)[:, None] - m(b.x)[None]).square().mean(),
    "broadcast against the targets": lambda m, b: (m.one(b.x) - b.weight[None, :]).square().mean(),
    "mse of means": lambda m, b: F.mse_loss(m(b.x).mean(0), b.t.mean(0)),
    "mse of correlations": lambda m, b: F.mse_loss(m(b.x).t() @ m(b.x), torch.eye(CLASSES, dtype=b.x.dtype)),
    "mse of centred outputs": lambda m, b: F.mse_loss(m(b.x) - m(b.x).mean(0), b.t),
    "mse, of samples repeated": lambda m, b: F.mse_loss(
        m(b.x)[None].expand(len(b), -1, -1), b.t[None].expand(len(b), -1, -1) + 1
    ),
    "mse of neighbours": lambda m, b: F.mse_loss(m(b.x), m(b.x).roll(1, 0)),
    "einsum with a parameter, last": lambda m, b: F.cross_entropy(
        torch.einsum("btf,fo->bto", m(b.seq), m.square).reshape(-1, CLASSES), b.words.flatten()
    ),
    "cumulated samples": lambda m, b: m(b.x).cumsum(0).mean(),
    "sorted samples": lambda m, b: (
        (m.one(b.x).sort(0).values - b.weight.sort().values[:, None]).square().mean()
    ),
    "hardest samples": lambda m, b: ce(m, b).topk(min(2, len(b))).values.mean(),
    "hardest samples, by a mask": lambda m, b: ce(m, b)[ce(m, b).detach() >= ce(m, b).detach().mean()].mean(),
    "batch norm": lambda m, b: (
        F.mse_loss(F.batch_norm(m(b.x), None, None, training=True), b.t) if len(b) > 1 else m(b.x).sum()
    ),
    "pooled samples": lambda m, b: (
        F.avg_pool2d(m(b.seq.transpose(0, 1)), (min(2, len(b)), 1)).square().mean()
    ),
    "contrastive, keys with a gradient": lambda m, b: F.cross_entropy(
        m(b.x) @ b.t.clone().requires_grad_().t(), torch.arange(len(b))
    ),
    "against all targets, in a loop": lambda m, b: torch.stack([(m(b.x) - t).square() for t in b.t]).mean(),
    "as often as there are samples": lambda m, b: torch.cat([m(b.x)] * len(b)).square().mean(),
    "gathered as often as there are samples": lambda m, b: (
        m(b.x).gather(1, b.y.expand(len(b), len(b))).square().mean()
    ),
    "gathered from all but the last": lambda m, b: (
        m(b.x).gather(1, b.y[: max(1, len(b) - 1), None]).square().mean()
    ),
    "a parameter as often as there are samples": lambda m, b: (
        (m.one(b.x) * m.scale.expand(len(b))).square().mean()
    ),
    "as many parameters as there are samples": lambda m, b: (
        m.one(b.x) * m.square[0].repeat(2)[: len(b)]
    ).mean(),
    "part of the parameters": lambda m, b: (m.one(b.x) * m.square.flatten()[: len(b)]).square().mean(),
    "log of a mean": lambda m, b: m(b.x).exp().mean().log(),
    # weights
    "weights normalised by their sum": lambda m, b: (ce(m, b) * b.weight / b.weight.sum()).sum(),
    "weights normalised within": lambda m, b: ((b.weight / b.weight.sum()) * ce(m, b)).mean(),
    "weights": lambda m, b: (ce(m, b) * b.weight).mean(),
    "mask": lambda m, b: (token_ce(m, b, reduction="none") * (b.tokens != IGNORED).flatten()).mean(),
    "mean over a mask": lambda m, b: (
        (token_ce(m, b, reduction="none") * (b.tokens != IGNORED).flatten()).sum()
        / (b.tokens != IGNORED).sum()
    ),
    "picked by a mask": lambda m, b: F.cross_entropy(m(b.x)[b.weight > 0.01], b.y[b.weight > 0.01]),
    "divided by a statistic with a gradient": lambda m, b: (ce(m, b) / ce(m, b).mean()).mean(),
    "advantages": lambda m, b: (
        -(m(b.x).log_softmax(1).gather(1, b.y[:, None])[:, 0] * (b.weight - b.weight.mean())).mean()
    ),
    "bce with a weight": lambda m, b: F.binary_cross_entropy_with_logits(
        m(b.x), b.bits, weight=(b.weight / b.weight.sum())[:, None]
    ),
    # no mean, or of several losses
    "sum": lambda m, b: F.mse_loss(m(b.x), b.t, reduction="none").sum(),
    "batch mean": lambda m, b: F.kl_div(m(b.x).log_softmax(1), b.t.softmax(1), reduction="batchmean"),
    "label smoothing, unreduced": lambda m, b: F.cross_entropy(
        m(b.x), b.y, reduction="none", label_smoothing=0.1
    ).mean(),
    "label smoothing, another divisor": lambda m, b: smoothed_by_hand(m, b, b.tokens == IGNORED, len(b)),
    "label smoothing, another mask": lambda m, b: smoothed_by_hand(m, b, b.tokens == 1, 18),
    "label smoothing, other weights": lambda m, b: smoothed_by_hand(m, b, b.tokens == IGNORED, 18, 0.5),
    "class probabilities": lambda m, b: F.cross_entropy(m(b.x), b.t.softmax(1)),
    "two losses": lambda m, b: F.cross_entropy(m(b.x), b.y) + 0.1 * F.mse_loss(m.head(b.z), b.t),
    "a loss and a penalty": lambda m, b: F.cross_entropy(m(b.x), b.y) + 0.1 * m.head.weight.pow(2).sum(),
    "a loss times its items": lambda m, b: F.mse_loss(m(b.x), b.t) * len(b),
    "root of a mean": lambda m, b: F.mse_loss(m(b.x), b.t).sqrt(),
    "median": lambda m, b: ce(m, b).median(),
    # not known
    "custom function": lambda m, b: Opaque.apply(m(b.x)).mean(),
    "parameters alone": lambda m, b: m.square.pow(2).mean() + 0 * m(b.x).sum(),
    "a parameter and statistics": lambda m, b: (m.logs.exp() * per_task(m, b).detach() + m.logs).mean(),
    "shuffled windows": lambda m, b: m(b.seq).unfold(1, 2, 1).mean(),
    "cross entropy, steps stacked": lambda m, b: F.cross_entropy(
        torch.stack(in_turn(m, b), 1).reshape(-1, CLASSES), b.words.flatten()
    ),
    "cross entropy, several heads": lambda m, b: F.cross_entropy(
        torch.cat([m(b.x), m.head(b.x)], dim=1), b.y
    ),
    "two unreduced, concatenated": lambda m, b: torch.cat(
        [ce(m, b), F.cross_entropy(m.head(b.z), b.y, reduction="none")]
    ).mean(),
}

# Read or asked for as the micro-batch is: of a single sample, squeeze() takes the samples' dimension away.
BY_SIZE: dict[str, Loss] = {
    "squeezed images": lambda m, b: F.cross_entropy(
        m.conv(b.image).squeeze(), torch.zeros_like(m.conv(b.image).squeeze().select(1, 0), dtype=torch.long)
    ),
}
