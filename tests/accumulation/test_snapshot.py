"""A copy of what a step changes, put back into the same tensors."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

# private: a snapshot puts every value back into the same tensor
from gradgate.forward_state import Snapshot
from tests.tensors import zeros


def stepped(optimizer: Optimizer, times: int) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()


class Historian(Optimizer):
    """Keeps a list of tensors, as Shampoo keeps its preconditioners."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            history = self.state[parameter].setdefault("history", [zeros(1), {"deep": zeros(1)}])
            history[0] += 1
            history[1]["deep"] += 1
            history.append(parameter.grad)
            parameter += 1


def test_tensors_inside_lists_are_put_back() -> None:
    parameter = nn.Parameter(zeros(1))
    optimizer = Historian([parameter])
    stepped(optimizer, 1)
    was = copy.deepcopy(optimizer.state_dict())
    snapshot = Snapshot.before_step([parameter], [optimizer])
    stepped(optimizer, 1)
    snapshot.restore()
    assert str(optimizer.state_dict()) == str(was)
    assert parameter.item() == 1.0


class Preconditioner:
    """An object of its own in the optimizer's state."""

    def __init__(self) -> None:
        self.steps, self.statistics = 0, zeros(2)


def test_objects_in_the_state_of_an_optimizer_are_put_back() -> None:
    parameter = nn.Parameter(zeros(2))
    optimizer = SGD([parameter], lr=0.1)
    held = optimizer.state[parameter]["preconditioner"] = Preconditioner()
    snapshot = Snapshot.before_step([parameter], [optimizer])
    held.steps += 1
    held.statistics += 1
    snapshot.restore()
    assert optimizer.state[parameter]["preconditioner"] is held
    assert (held.steps, held.statistics.tolist()) == (0, [0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.cfloat])
def test_values_are_put_back_bit_for_bit(dtype: torch.dtype) -> None:
    """-0.0 equals 0.0, but its reciprocal has the other sign."""
    value = torch.tensor([-0.0, 0.0, 1.0], dtype=dtype)
    bits = value.view(torch.uint8).clone()
    snapshot = Snapshot([{"deep": [value]}])
    value.copy_(torch.tensor([0.0, -0.0, 1.0]))
    assert not torch.equal(value.view(torch.uint8), bits)
    snapshot.restore()
    assert torch.equal(value.view(torch.uint8), bits)
