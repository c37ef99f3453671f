"""Losses over whole windows leave parameters that encoding moves as a single pass would: they move once."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate import (
    forward_state,
)  # private: above which size tensors are copied only if a window changes them
from gradgate.errors import UpdateError
from tests.coupled import batch, sizes_of
from tests.messages import raises
from tests.reference import assert_same, received
from tests.tensors import on_device

SIZES = [3, 2, 3]


@torch.no_grad()
def in_place(teacher: Tensor, student: Tensor) -> None:
    teacher.mul_(0.9).add_(student, alpha=0.1)


@torch.no_grad()
def interpolated(teacher: Tensor, student: Tensor) -> None:
    teacher.lerp_(student, 0.1)  # changes no value while both are equal


def assigned(teacher: Tensor, student: Tensor) -> None:
    teacher.data = teacher.data * 0.9 + student.data * 0.1  # as MoCo does


def behind_the_version(teacher: Tensor, student: Tensor) -> None:
    teacher.data.mul_(0.9).add_(student.data, alpha=0.1)  # as DINO does


class Momentum(nn.Module):
    """A student, and a teacher that each forward pass moves towards it."""

    def __init__(self, move: Callable[[Tensor, Tensor], object] | None = in_place) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.student = nn.Linear(5, 64, bias=False)  # enough values that some change in the first window
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.move = move

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.move:
            for teacher, student in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                self.move(teacher, student)
        return self.student(x), self.teacher(x)


def loss_fn(pair: tuple[Tensor, Tensor]) -> Tensor:
    return (pair[0] @ pair[1].T).logsumexp(1).mean()


def sgd(model: Momentum) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.student.parameters(), lr=0.1)


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all tensors as large ones, which are copied only until a window leaves them unchanged."""
    monkeypatch.setattr(forward_state, "LARGE_BYTES", 0)


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("move", [in_place, interpolated, assigned, behind_the_version])
def test_a_momentum_encoder_moves_as_in_one_pass(
    request: pytest.FixtureRequest,
    move: Callable[[Tensor, Tensor], object],
    large: bool,
    with_model: bool,
) -> None:
    if large:
        request.getfixturevalue("no_copies")
    mine, plain = on_device(Momentum(move)), on_device(Momentum(move))
    optimizer, theirs = sgd(mine), sgd(plain)
    accumulator = gg.Accumulator(optimizer, model=mine if with_model else None)
    for _ in range(3):
        parts = sizes_of(SIZES)
        students, teachers = zip(*map(plain, parts), strict=True)
        theirs.zero_grad()
        loss_fn((torch.cat(students), torch.cat(teachers))).backward()
        with received(optimizer) as steps, accumulator.update() as update:
            update.backward_coupled(mine, parts, loss_fn)
        assert_same(steps[0], [parameter.grad for parameter in plain.student.parameters()])
        theirs.step()
        assert_same(list(mine.teacher.parameters()), list(plain.teacher.parameters()))


def test_a_replay_moves_it_once_too() -> None:
    mine, plain, x = on_device(Momentum()), on_device(Momentum()), batch(8)

    def encode(part: Tensor) -> tuple[Tensor, Tensor]:
        pair: tuple[Tensor, Tensor] = mine(part)
        if len(part) > 2 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("as many samples as this do not fit")
        return pair

    with torch.no_grad():
        for model in (mine, plain):
            model.teacher.weight.zero_()
    update = gg.Accumulator(sgd(mine), model=mine).step_coupled(encode, x.split(4), loss_fn)
    for part in x.split(2):
        plain(part)
    assert update.micro_batch_count == 4
    assert_same(list(mine.teacher.parameters()), list(plain.teacher.parameters()))


@pytest.mark.usefixtures("no_copies")
def test_a_large_parameter_that_moves_late_is_an_error_until_it_is_copied() -> None:
    model = on_device(Momentum(None))
    accumulator = gg.Accumulator(sgd(model), model=model)
    accumulator.step_coupled(model, sizes_of(SIZES), loss_fn)
    before = copy.deepcopy(model.student)
    model.move = behind_the_version
    with raises(UpdateError, "a momentum encoder that moves late"):
        accumulator.step_coupled(model, sizes_of(SIZES), loss_fn)
    assert torch.equal(model.student.weight, before.weight)
    plain = copy.deepcopy(model)
    accumulator.step_coupled(model, sizes_of(SIZES), loss_fn)
    for part in sizes_of(SIZES):
        plain(part)
    assert_same(list(model.teacher.parameters()), list(plain.teacher.parameters()))
