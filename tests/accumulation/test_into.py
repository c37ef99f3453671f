"""A loss goes into what it is told to, and nowhere else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import GraphError, OptionError, OwnerError
from tests.messages import raises
from tests.reference import assert_same
from tests.tensors import on_device, randn


class Twoheaded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.left = nn.Linear(3, 1)
        self.right = nn.Linear(3, 1)

    def losses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.trunk(x).tanh()
        return self.left(code).square().mean(), self.right(code).square().mean()


def two_heads() -> tuple[Twoheaded, gg.Accumulator]:
    torch.manual_seed(0)
    model = on_device(Twoheaded())
    return model, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0))


def test_each_loss_goes_into_what_it_names() -> None:
    model, accumulator = two_heads()
    batch = randn(8, 3)
    probe, loss = model.losses(batch)
    expected = [
        *torch.autograd.grad(loss, model.trunk.parameters(), retain_graph=True),
        *torch.autograd.grad(probe, model.left.parameters(), retain_graph=True),
        *torch.autograd.grad(loss, model.right.parameters()),
    ]
    before = [one.detach().clone() for one in model.parameters()]
    with accumulator.update() as update:
        for x in update.micro_batches(batch.split([5, 3])):
            probe, loss = model.losses(x)
            update.backward(probe, into=[model.left], name="probe", retain_graph=True)
            update.backward(loss, into=[model.trunk, model.right.weight, model.right.bias])
    moved = [was - one.detach() for was, one in zip(before, model.parameters(), strict=True)]
    # Read off the weights, which costs digits.
    assert_same(moved, expected, rtol=1e-10 if batch.dtype == torch.float64 else 1e-4)


def test_a_probe_without_it_moves_the_trunk() -> None:
    """What the test above would not tell from the right thing, if it could not fail."""
    model, accumulator = two_heads()
    before = model.trunk.weight.detach().clone()
    with accumulator.update() as update:
        update.backward(model.losses(randn(8, 3))[0])
    assert not torch.equal(model.trunk.weight, before)


def test_of_a_module_what_is_owned_receives() -> None:
    model, _ = two_heads()
    accumulator = gg.Accumulator(torch.optim.SGD([model.trunk.weight], lr=1.0))
    before = model.trunk.bias.detach().clone()
    with accumulator.update() as update:
        update.backward(model.losses(randn(8, 3))[0], into=model)
    assert model.trunk.bias.grad is None
    assert torch.equal(model.trunk.bias, before)


def frozen_left(model: Twoheaded) -> nn.Module:
    return model.left.requires_grad_(False)


@pytest.mark.parametrize(
    ("into", "kind", "cause"),
    [
        (lambda _: nn.Linear(3, 3), OwnerError, ("into an unowned module", "Linear")),
        (
            lambda _: [nn.Parameter(torch.ones(2))],
            OwnerError,
            ("into an unowned module", "a tensor of shape [2]"),
        ),
        (lambda _: [], OptionError, ("an empty into",)),
        (lambda _: ["left"], OptionError, ("into a word", "str")),
        (frozen_left, GraphError, ("into a frozen module", "Linear")),
        (
            lambda model: model.right,
            GraphError,
            ("into a module beside the loss", "2 parameters", "a tensor of shape"),
        ),
    ],
)
def test_what_cannot_receive_is_refused_and_nothing_moves(
    into: Any, kind: type[Exception], cause: tuple[str, ...]
) -> None:
    model, accumulator = two_heads()
    before = [one.detach().clone() for one in model.parameters()]
    given = into(model)
    with raises(kind, *cause), accumulator.update() as update:
        update.backward(model.losses(randn(8, 3))[0], into=given)
    assert all(torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True))
    assert all(one.grad is None for one in model.parameters())
