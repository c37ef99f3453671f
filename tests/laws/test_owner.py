"""Law 3. An update leaves the ``.grad`` of what it does not own as it was: the same object, or None."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

import gradgate as gg
from tests.accumulation.one_weight import StopError, stopped_by
from tests.laws.optimizers import OPTIMIZERS
from tests.reference import assert_same
from tests.tensors import labels, on_device, randn, tensor

WIDTH = 3


class Everything(nn.Module):
    """Every kind of parameter that a graph can contain, in the one graph of a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)  # shared by both heads
        self.head = nn.Linear(WIDTH, WIDTH)
        self.generator = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.discriminator = nn.Linear(WIDTH, 1)
        self.embedding = nn.Embedding(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.output.weight = self.embedding.weight  # tied
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.unused = Parameter(torch.ones(1))

    def loss(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        words = self.output(code + self.embedding(labels([0, 1, 1])).sum(0))
        fake = self.discriminator(self.frozen(self.generator(x)))
        return (self.head(code).pow(2).sum(1) + words.sin().sum(1) + fake.exp().squeeze(1)).mean()


@dataclass
class World:
    """A graph, and leaves that feed it but are no parameters."""

    model: Everything
    leaves: list[Tensor]

    def tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.leaves]

    def loss(self, number: int) -> Tensor:
        return self.model.loss(self.leaves[number])


def world() -> World:
    torch.manual_seed(0)
    leaves = [randn(size, WIDTH).requires_grad_() for size in (4, 1)]
    return World(on_device(Everything()), leaves)


Way = Callable[[World, gg.Accumulator], None]


def in_a_block(here: World, accumulator: gg.Accumulator) -> None:
    with accumulator.update() as update:
        for number in update.micro_batches([0, 1]):
            update.backward(here.loss(number))


def in_one_call(here: World, accumulator: gg.Accumulator) -> None:
    accumulator.step_window(here.loss, [0, 1])


def two_losses(here: World, accumulator: gg.Accumulator) -> None:
    with accumulator.update() as update:
        for number in update.micro_batches([0, 1]):
            update.backward(here.loss(number))
            update.backward(here.loss(1 - number))


def given_up(here: World, accumulator: gg.Accumulator) -> None:
    with stopped_by(StopError), accumulator.update() as update:
        update.backward(here.loss(0))
        raise StopError


def plain_backward(here: World, accumulator: gg.Accumulator) -> None:
    """The usual loop: the optimizer steps what it owns, but backward fills everything."""
    (optimizer,) = accumulator._settings.optimizers
    here.loss(0).backward()
    optimizer.step()
    optimizer.zero_grad()


def clears_everything(here: World, accumulator: gg.Accumulator) -> None:
    """The model's own ``zero_grad`` after an update, in place of the optimizer's."""
    in_a_block(here, accumulator)
    here.model.zero_grad()


def clips_everything(here: World, accumulator: gg.Accumulator) -> None:
    in_a_block(here, accumulator)
    nn.utils.clip_grad_norm_(here.model.parameters(), 1e-3)


def fills_everything(here: World, accumulator: gg.Accumulator) -> None:
    """A wrapper around the optimizer that wants a gradient in each parameter that it is shown."""
    in_a_block(here, accumulator)
    for one in here.model.parameters():
        one.grad = torch.zeros_like(one) if one.grad is None else one.grad


def assert_rest_untouched(way: Way, here: World, accumulator: gg.Accumulator) -> None:
    owned = {id(p) for one in accumulator._settings.optimizers for g in one.param_groups for p in g["params"]}
    rest = [one for one in here.tensors() if id(one) not in owned]
    before = [(one.grad, None if one.grad is None else one.grad.clone()) for one in rest]
    way(here, accumulator)
    for one, (gradient, values) in zip(rest, before, strict=True):
        assert one.grad is gradient, f"leaked into a tensor of shape {list(one.shape)}"
        assert values is None or torch.equal(gradient, values), "leaked in place"


CLEAR = ["none", "zero", gg.decay(0.5)]


@dataclass
class Plan:
    owners: list[int]  # of each tensor; 2 is nobody
    holding: list[bool]  # whether it holds a gradient already
    order: list[int]  # of updates
    clears: list[object]
    optimizers: list[str]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    def some(of: st.SearchStrategy[Any], size: int) -> Any:
        return draw(st.lists(of, min_size=size, max_size=size))

    size = len(world().tensors())
    return Plan(
        owners=some(st.integers(0, 2), size),
        holding=some(st.booleans(), size),
        order=draw(st.lists(st.integers(0, 1), min_size=1, max_size=4)),
        clears=some(st.sampled_from(CLEAR), 2),
        optimizers=some(st.sampled_from(sorted(OPTIMIZERS)), 2),
    )


@pytest.mark.parametrize("way", [in_a_block, in_one_call, two_losses, given_up], ids=lambda way: way.__name__)
@settings(max_examples=25)
@given(plan=plans())
def test_after_any_updates_of_any_owners_the_rest_is_untouched(way: Way, plan: Plan) -> None:
    here = world()
    tensors = here.tensors()
    accumulators = []
    for owner in (0, 1):
        # Each owns something that its loss reaches, so that there is a gradient to step on.
        sure = [here.model.head.bias, here.model.discriminator.bias][owner]
        surely_not = [here.model.discriminator.bias, here.model.head.bias][owner]
        own = [t for t, o in zip(tensors, plan.owners, strict=True) if o == owner and t is not surely_not]
        own = [t for t in own if t is not sure] + [sure]
        optimizer = OPTIMIZERS[plan.optimizers[owner]](own)
        accumulators.append((own, gg.Accumulator(optimizer, clear=plan.clears[owner])))
    owned = {id(one) for own, _ in accumulators for one in own}
    for one, holds in zip(tensors, plan.holding, strict=True):
        if holds and id(one) not in owned:
            one.grad = torch.ones_like(one)
    for owner in plan.order:
        assert_rest_untouched(way, here, accumulators[owner][1])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", [plain_backward, fills_everything], ids=lambda way: way.__name__)
def test_the_law_rejects_what_gives_a_gradient_to_others(way: Way, name: str) -> None:
    here = world()
    accumulator = gg.Accumulator(OPTIMIZERS[name](here.model.head.parameters()))
    with pytest.raises(AssertionError, match="leaked into"):
        assert_rest_untouched(way, here, accumulator)


@pytest.mark.parametrize(
    ("way", "complaint"),
    [
        (plain_backward, "leaked in place"),
        (clips_everything, "leaked in place"),
        (clears_everything, "leaked into"),
    ],
)
def test_the_law_rejects_what_changes_a_gradient_that_stands_there(way: Way, complaint: str) -> None:
    here = world()
    here.model.encoder.weight.grad = torch.ones_like(here.model.encoder.weight)
    accumulator = gg.Accumulator(
        SGD([p for p in here.tensors() if p is not here.model.encoder.weight], lr=0.1)
    )
    with pytest.raises(AssertionError, match=complaint):
        assert_rest_untouched(way, here, accumulator)


# -- what is owned receives the whole of its gradient -----------------------------------------------


def gradients(loss: Tensor, of: Iterable[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(of)))


def gan() -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(0)
    generator = on_device(nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, WIDTH)))
    return generator, on_device(nn.Linear(WIDTH, 1)), randn(6, WIDTH)


def sgd(module: nn.Module) -> tuple[Optimizer, gg.Accumulator]:
    optimizer = SGD(module.parameters(), lr=0.1)
    return optimizer, gg.Accumulator(optimizer)


def test_two_open_updates_share_one_graph_and_each_takes_its_own() -> None:
    generator, discriminator, noise = gan()
    expected = [
        gradients(discriminator(generator(noise)).mean(), m.parameters()) for m in (generator, discriminator)
    ]
    before = [[p.detach().clone() for p in m.parameters()] for m in (generator, discriminator)]
    (_, g_accumulator), (_, d_accumulator) = sgd(generator), sgd(discriminator)
    with g_accumulator.update() as g_update, d_accumulator.update() as d_update:
        for z in noise.split([4, 2]):
            loss = discriminator(generator(z)).mean()
            g_update.backward(loss, retain_graph=True, name="score")
            d_update.backward(-loss, count=len(z), name="score")
    for module, was, gradient, sign in zip(
        (generator, discriminator), before, expected, (1, -1), strict=True
    ):
        assert_same(
            [(w - p.detach()) / 0.1 for w, p in zip(was, module.parameters(), strict=True)],
            [sign * g for g in gradient],
            rtol=1e-9 if noise.dtype == torch.float64 else 1e-4,  # the step is undone, which costs digits
        )


def test_a_leaf_that_is_no_parameter_can_be_owned() -> None:
    image = tensor([1.0, 2.0]).requires_grad_()
    with gg.Accumulator(SGD([image], lr=1.0)).update() as update:
        update.backward((image**2).sum(), count=1)
    assert image.tolist() == [-1.0, -2.0]


def test_a_parameter_that_is_unfrozen_between_micro_batches_receives_the_later_ones() -> None:
    a, b = Parameter(tensor(0.0)), Parameter(tensor(0.0), requires_grad=False)
    with gg.Accumulator(SGD([a, b], lr=1.0)).update() as update:
        for number in update.micro_batches([1, 2]):
            b.requires_grad_(number == 2)
            update.backward(a * number + b * number, count=1)
    assert (a.item(), b.item()) == (-1.5, -1.0)  # (1 + 2) / 2, and 2 / 2: the whole window divides


def test_a_parameter_that_is_frozen_between_micro_batches_keeps_the_earlier_ones() -> None:
    a, b = Parameter(tensor(0.0)), Parameter(tensor(0.0))
    with gg.Accumulator(SGD([a, b], lr=1.0)).update() as update:
        for number in update.micro_batches([1, 2]):
            b.requires_grad_(number == 1)
            update.backward(a * number + b * number, count=1)
    assert (a.item(), b.item()) == (-1.5, -0.5)


def test_a_group_that_is_added_later_belongs_to_the_next_window() -> None:
    a, b = Parameter(tensor(0.0)), Parameter(tensor(0.0))
    optimizer = SGD([a], lr=1.0)
    accumulator = gg.Accumulator(optimizer)
    with accumulator.update() as update:
        update.backward(a + b, count=1)
        optimizer.add_param_group({"params": [b]})
    assert (a.item(), b.item(), b.grad) == (-1.0, 0.0, None)
    with accumulator.update() as update:
        update.backward(a + b, count=1)
    assert (a.item(), b.item()) == (-2.0, -1.0)


# -- the backward of what nobody owns is not run ----------------------------------------------------


class Counted(torch.autograd.Function):
    """The identity; counts how often its backward is run."""

    runs = 0

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        Counted.runs += 1
        return gradient


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def runs_of(backward: Callable[[Tensor], None]) -> tuple[int, int, int]:
    """How often the generator's backward was run, a hook on its output fired, and matrices were multiplied."""
    generator, discriminator, noise = gan()
    Counted.runs = fired = 0

    def note(gradient: Tensor) -> None:
        nonlocal fired
        fired += 1

    fake = Counted.apply(generator(noise))
    fake.register_hook(note)
    loss = discriminator(fake).mean()
    with Products() as products:
        backward(loss, discriminator)
    return Counted.runs, fired, products.count


def test_the_backward_of_what_nobody_owns_is_not_run() -> None:
    def ours(loss: Tensor, discriminator: nn.Module) -> None:
        with sgd(discriminator)[1].update() as update:
            update.backward(loss)

    def plain(loss: Tensor, discriminator: nn.Module) -> None:
        loss.backward()

    assert runs_of(ours) == (0, 0, 1)  # one product: the discriminator's own weight
    assert runs_of(plain) == (1, 1, 5)  # and its input; the generator's two weights and the layer between
