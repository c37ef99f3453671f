"""Models that treat samples apart, and gates in them, each beside its obvious form."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradgate as gg

FEATURES, HIDDEN, CLASSES = 4, 6, 7  # the classes are the words too

Gate = Callable[[Tensor], Tensor]


def _identity(x: Tensor) -> Tensor:
    return x


def _mask(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1]) % 2 == 0


def _hook(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: 2 * gradient)
    return x


def _clamp(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return x


# With gradgate, and by hand.
GATES: dict[str, tuple[Gate, Gate]] = {
    "none": (_identity, _identity),
    "scale": (lambda x: gg.scale_gradient(x, 0.3), lambda x: 0.3 * x + 0.7 * x.detach()),
    "reverse": (lambda x: gg.reverse_gradient(x, strength=0.5), lambda x: 1.5 * x.detach() - 0.5 * x),
    "mask": (
        lambda x: gg.mask_gradient(x, _mask(x).expand_as(x)),
        lambda x: torch.where(_mask(x), x, x.detach()),
    ),
    "stop": (lambda x: x + gg.stop_gradient(x), lambda x: x + x.detach()),
    "hook": (_hook, _hook),
    # It sees the gradient of a micro-batch's own mean: the truth takes micro-batches one by one.
    "clip": (lambda x: gg.clip_gradient(x, max_value=0.01), _clamp),
}
BY_MICRO_BATCH = ("clip",)


def _of_batch(x: Tensor) -> Tensor:
    """Attention of each sample to all samples."""
    flat = x.flatten(1)
    return ((flat @ flat.mT / flat.shape[1] ** 0.5).softmax(-1) @ flat).view_as(x)


# What no split gives the whole batch's gradient of. The first ones mix the samples of a body's output.
MIXES: dict[str, Gate] = {
    "centred": lambda x: x - x.mean(0),
    "normed": lambda x: (x - x.mean(0)) / (x.var(0, correction=0) + 0.1).sqrt(),
    "softmax over the batch": lambda x: x.softmax(0),
    "attention over the batch": _of_batch,
    "neighbours": lambda x: x + x.roll(1, 0),
    "spread": lambda x: torch.cat([x[..., 1:], x.var(0, correction=0).mean().expand_as(x[..., :1])], -1),
}
# These clip the gradient of each parameter in each micro-batch.
CLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamped": lambda gradient: gradient.clamp(-1e-4, 1e-4),
    "clipped": lambda gradient: gradient * (1e-4 / gradient.norm().clamp(min=1e-30)).clamp(max=1.0),
}


class Frozen(nn.Sequential):
    """Norms in here stay in eval mode."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


class Routed(nn.Module):
    """Two experts, of which a sample takes one: a window may leave an expert without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), HIDDEN)
        for expert, chosen in zip(self.experts, (x[:, 0] > 0.5, x[:, 0] <= 0.5), strict=True):
            if chosen.any():
                out = out.masked_scatter(chosen[:, None], expert(x[chosen]))
        return out.tanh()


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.block = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, self.first(x).tanh(), use_reentrant=self.reentrant)
        return out.tanh()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, HIDDEN, dtype=torch.complex128) / 2)

    def forward(self, x: Tensor) -> Tensor:
        out = x.to(self.weight.dtype) @ self.weight
        return out.real.tanh() + out.imag.sin()


class Stateful(nn.Module):
    """Counts its samples in a buffer, a parameter that nobody owns, a plain tensor, and a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, HIDDEN)
        self.register_buffer("seen", torch.zeros(()))
        self.moment = nn.Parameter(torch.zeros(FEATURES), requires_grad=False)
        self.plain = torch.zeros(FEATURES, dtype=torch.float64)
        self.number = 0
        self.counts = True  # but in an evaluation

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.counts:
            with torch.no_grad():
                self.moment += x.sum(0)
            self.seen = self.seen + len(x)
            self.plain = self.plain + x.sum(0).detach()
            self.number += len(x)
        return self.linear(x).tanh()

    def state(self) -> list[Tensor]:
        return [self.seen, self.moment, self.plain, torch.tensor(float(self.number))]


class Placed(nn.Module):
    """Adds parameters whose gradients autograd stores as one tensor, and as views inside of another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, HIDDEN)
        self.place, self.kind = (nn.Parameter(torch.randn(HIDDEN) / 2) for _ in range(2))
        self.first, self.rest = (nn.Parameter(torch.randn(size) / 2) for size in (2, HIDDEN - 2))

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.cat([self.first, self.rest])
        return (self.linear(x) + (self.place[None] + self.kind[None] + whole[None])).tanh()


class Attention(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, HIDDEN, sparse=sparse)
        self.key, self.value = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.embedding(x)
        scores = (self.key(h) @ h.mT).masked_fill(~mask[:, None, :].bool(), -1e9)
        return h + scores.softmax(-1) @ self.value(h)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(CLASSES, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.gru(self.embedding(x))[0]
        return out


BODIES: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.LayerNorm(HIDDEN), nn.Tanh()),
    "frozen norm": lambda: Frozen(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh()),
    "routed": Routed,
    "checkpointed": lambda: Checkpointed(reentrant=False),
    "reentrant": lambda: Checkpointed(reentrant=True),
    "complex": Complex,
    "stateful": Stateful,
    "placed": Placed,
    "attention": Attention,
    "tied": Attention,
    "sparse": lambda: Attention(sparse=True),
    "recurrent": Recurrent,
}
OF_WORDS = ("attention", "tied", "sparse", "recurrent")


class Net(nn.Module):
    """A body, a gate behind it, and a head; beside them the weights of two losses.

    ``spoiled`` names what keeps any split from being exact.
    """

    def __init__(self, kind: str, gate: Gate, spoiled: str = "") -> None:
        super().__init__()
        self.body = BODIES[kind]()
        self.head = nn.Linear(HIDDEN, CLASSES, bias=kind != "tied")
        if kind == "tied":
            self.head.weight = self.body.embedding.weight  # type: ignore[assignment, union-attr]
        self.log_scales = nn.Parameter(torch.tensor([0.3, -0.2]))
        mix = MIXES.get(spoiled, _identity)
        self.gate = lambda x: mix(gate(x))
        for parameter in self.parameters() if spoiled in CLIPS else ():
            if parameter.requires_grad:
                parameter.register_hook(CLIPS[spoiled])

    def forward(self, x: Tensor, mask: Tensor | None = None, image: Tensor | None = None) -> Tensor:
        out: Tensor = self.head(self.gate(self.body(x) if mask is None else self.body(x, mask)))
        return out if image is None else out * (1 + image.mean((1, 2)))[:, None, None]


def build(kind: str, gate: Gate, seed: int, spoiled: str = "") -> Any:
    torch.manual_seed(seed)
    return Net(kind, gate, spoiled).double().train()
