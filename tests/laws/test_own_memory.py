"""Law. A gradient that is written in place owns its memory alone, whatever autograd has stored there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg

# private: a torch without the private name that tells whether memory is shared
from gradgate.torch_compat import owns_memory
from tests.reference import received
from tests.tensors import RTOL, randn, zeros

ROWS, TIME, WIDTH = 7, 5, 3


class Shares(nn.Module):
    """Adds parameters to its input, and has a head behind a nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Parameter(randn(WIDTH))
        self.make()

    def make(self) -> None:
        raise NotImplementedError

    def summed(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return ((x + self.summed(x)).tanh() @ self.head).square()


class OneTensor(Shares):
    def make(self) -> None:
        self.a, self.b = (nn.Parameter(randn(TIME, WIDTH)) for _ in range(2))

    def summed(self, x: Tensor) -> Tensor:
        return self.a[None] + self.b[None]


class ViewInside(Shares):
    def make(self) -> None:
        self.kind, self.cls, self.pos = (nn.Parameter(randn(n, WIDTH)) for n in (TIME, 1, TIME - 1))

    def summed(self, x: Tensor) -> Tensor:
        return self.kind.unsqueeze(0) + torch.cat([self.cls, self.pos]).unsqueeze(0)


class OneTensorOfThree(Shares):
    """A scale and a shift as well, so that some parameters share and others do not."""

    def make(self) -> None:
        self.a, self.b, self.c = (nn.Parameter(randn(1, TIME, WIDTH)) for _ in range(3))
        self.scale = nn.Parameter(randn(WIDTH))

    def summed(self, x: Tensor) -> Tensor:
        return self.scale * x + self.a.view(1, TIME, WIDTH) + self.b.squeeze(0)[None] + self.c[:]


class OneRow(Shares):
    """Sparse gradients with one row, which ``coalesce`` does not copy."""

    def make(self) -> None:
        self.first, self.second = (nn.Embedding(4, WIDTH, sparse=True).to(randn(1)) for _ in range(2))

    def summed(self, x: Tensor) -> Tensor:
        row = torch.tensor([2], device=x.device)
        return self.first(row)[None] + self.second(row)[None]


class SparseAndDense(Shares):
    """A dense gradient that is one tensor with the rows of a sparse one."""

    def make(self) -> None:
        self.words = nn.Embedding(9, WIDTH, sparse=True).to(randn(1))
        self.places = nn.Parameter(randn(TIME, WIDTH))

    def summed(self, x: Tensor) -> Tensor:
        return self.words(torch.arange(TIME, device=x.device))[None] + self.places[None]


MODELS: dict[str, type[Shares]] = {
    kind.__name__: kind for kind in (OneTensor, ViewInside, OneTensorOfThree, OneRow, SparseAndDense)
}
OF_SPARSE = ("OneRow", "SparseAndDense")
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a clip": {"clip_norm": 0.01},
    "a clip of values": {"clip_value": 0.01},
    "zeros": {"clear": "zero"},
    "decay": {"clear": gg.decay(0.5)},
    "a loss scale": {"scaler": True},
}
# Losses that add up to one.
SHARES = {1: {"whole": 1.0}, 2: {"a quarter": 0.25, "the rest": 0.75}}


def truth(model: nn.Module, x: Tensor, before: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """Return the gradient of the whole batch, with the decayed one from before, clipped."""
    gradients = torch.autograd.grad(model(x).mean(), list(model.parameters()))
    found = [gradient.to_dense() + 0.5 * last for gradient, last in zip(gradients, before, strict=True)]
    if "clip_norm" in options:
        norm = float(torch.stack([gradient.norm() for gradient in found]).norm())
        return [gradient * min(1.0, options["clip_norm"] / (norm + 1e-6)) for gradient in found]
    limit = options.get("clip_value", torch.inf)
    return [gradient.clamp(-limit, limit) for gradient in found]


def train(model: nn.Module, sizes: list[int], how: str, losses: int) -> float:
    """Train for three windows; return by how much the gradients are off, relative to the largest."""
    options = dict(OPTIONS[how])
    decays = how == "decay"
    optimizer = SGD(model.parameters(), lr=0.0)
    if "scaler" in options:
        options["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0)
    accumulator = gg.Accumulator(optimizer, **options)
    before = [torch.zeros_like(parameter) for parameter in model.parameters()]
    off = 0.0
    for _ in range(3):
        x = randn(sum(sizes), TIME, WIDTH)
        wanted = truth(model, x, before, options)
        with received(optimizer) as steps, accumulator.update() as update:
            for part in update.micro_batches(x.split(sizes)):
                for name, share in SHARES[losses].items():
                    update.backward(share * model(part).mean(), count=len(part), name=name)
        before = wanted if decays else before
        largest = max(float(gradient.abs().max()) for gradient in wanted)
        for actual, right in zip(steps[0], wanted, strict=True):
            assert actual is not None
            off = max(off, float((actual.to_dense() - right).abs().max()) / largest)
    return off


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(MODELS)),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    how=st.sampled_from(list(OPTIONS)),
    losses=st.integers(1, 2),
)
def test_gradients_that_autograd_stores_in_one_memory_give_the_whole_batchs_update(
    name: str, sizes: list[int], how: str, losses: int
) -> None:
    if name in OF_SPARSE and how not in ("nothing", "decay"):
        how = "nothing"  # torch clamps and scales no sparse gradient
    assert train(MODELS[name](), sizes, how, losses) < 100 * RTOL


def test_without_the_private_name_every_new_gradient_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owns_memory, "use", owns_memory.otherwise)
    for kind in MODELS.values():
        assert train(kind(), [2, 3], "nothing", 2) < 100 * RTOL


class Returned(torch.autograd.Function):
    """The sum of weight times a constant. Its backward returns the constant, or a view of it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, constant: Tensor, share: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.constant, ctx.share = constant, share
        return (weight * constant).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.share(ctx.constant), None, None


SHARE: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "detached": Tensor.detach,
    "a view": lambda x: x.view(x.shape),
}


@pytest.mark.parametrize("share", SHARE)
def test_a_tensor_of_the_users_that_a_backward_returns_stays_as_it_is(share: str) -> None:
    weight, constant = nn.Parameter(zeros(3)), randn(3)
    before, optimizer = constant.clone(), SGD([weight], lr=0.0)
    accumulator = gg.Accumulator(optimizer, clip_norm=0.5)
    with received(optimizer) as steps:
        for _ in range(2):
            with accumulator.update() as update:
                for _ in update.micro_batches(range(3)):
                    update.backward(Returned.apply(weight, constant, SHARE[share]), count=2)
    assert torch.equal(constant, before)
    for (gradient,) in steps:
        assert torch.allclose(gradient, 0.5 * before / (before.norm() + 1e-6))


def test_a_weight_that_is_its_own_gradient_does_not_move_before_the_step() -> None:
    weight = nn.Parameter(randn(3))
    before = weight.detach().clone()
    accumulator = gg.Accumulator(SGD([weight], lr=0.5), clip_norm=0.1)
    with accumulator.update() as update:
        for _ in update.micro_batches(range(2)):
            update.backward(Returned.apply(weight, weight.detach(), SHARE["detached"]), count=1)
    clipped = 0.1 * before / (before.norm() + 1e-6)
    assert torch.allclose(weight, before - 0.5 * clipped)
