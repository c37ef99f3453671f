"""Handles on parameters that other code replaces: the optimizer refuses to step what they do not act on."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import gradgate as gg
from gradgate.errors import OptionError
from tests.messages import raises
from tests.ranks.processes import together

HANDLES: dict[str, Callable[[nn.Module], Any]] = {
    "scaled": lambda module: gg.scaled(module, factor=0.1),
    "train_rows": lambda module: gg.train_rows(module, [1]),
}
REPLACED: dict[str, Callable[[nn.Module], object]] = {
    "loaded": lambda module: module.load_state_dict(module.state_dict(), assign=True),
    "normed": nn.utils.parametrizations.weight_norm,
    "set": lambda module: module.register_parameter("weight", nn.Parameter(torch.ones(3, 2))),
}


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("call", HANDLES)
def test_an_optimizer_refuses_what_replaced_the_parameter(call: str, how: str) -> None:
    module = nn.Linear(2, 3)
    handle = HANDLES[call](module)
    REPLACED[how](module)
    optimizer = AdamW(module.parameters(), lr=0.1)
    module(torch.ones(1, 2)).sum().backward()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    with raises(OptionError, "scaled and loaded anew", f"{call}: the weight of"):
        optimizer.step()
    assert all(map(torch.equal, before, module.parameters()))
    handle.remove()
    optimizer.step()
    assert not any(map(torch.equal, before, module.parameters()))


def same_weight(module: nn.Module, parameter: Tensor) -> None:
    module.to(torch.float64)
    nn.utils.parametrizations.orthogonal(module)
    assert any(each is parameter for each in module.parameters())


UNTOUCHED: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "converted": lambda module, parameter: module.to(torch.float64),
    "loaded in place": lambda module, parameter: module.load_state_dict(module.state_dict()),
    "parametrized, the same parameter": same_weight,
    "another bias": lambda module, parameter: module.register_parameter("bias", nn.Parameter(torch.ones(2))),
}


@pytest.mark.parametrize("how", UNTOUCHED)
def test_the_same_parameter_is_stepped(how: str) -> None:
    module = nn.Linear(2, 2)
    gg.train_rows(module, [1])
    UNTOUCHED[how](module, module.weight)
    module(torch.ones(1, 2, dtype=next(module.parameters()).dtype)).sum().backward()
    SGD(module.parameters(), lr=0.1).step()


def test_other_optimizers_step_as_ever() -> None:
    module, other = nn.Linear(2, 2), nn.Linear(2, 2)
    gg.scaled(module, factor=0.1)
    old = SGD(module.parameters(), lr=0.1)
    module.load_state_dict(module.state_dict(), assign=True)
    old.step()  # of the parameters that nothing uses by now, as without gradgate
    SGD(other.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copied", "pickled"]
)
@pytest.mark.parametrize("call", HANDLES)
def test_a_model_that_keeps_its_handle_is_copied_and_pickled(
    call: str, twin_of: Callable[[Any], Any]
) -> None:
    module = nn.Linear(2, 3)
    module.handle = HANDLES[call](module)  # type: ignore[assignment]
    twin = twin_of(module)
    twin.load_state_dict(twin.state_dict(), assign=True)
    twin(torch.ones(1, 2)).sum().backward()
    SGD(twin.parameters(), lr=0.1).step()  # nothing acts on a copy
    module.load_state_dict(module.state_dict(), assign=True)
    with pytest.raises(OptionError, match="was replaced after the call"):
        SGD(module.parameters(), lr=0.1).step()


def sharded_afterwards(rank: int, call: str) -> str:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    handle = HANDLES[call](model[0])
    fully_shard(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    for refused in (optimizer.step, lambda: [handle.remove(), HANDLES[call](model[0])]):
        with pytest.raises(OptionError, match="sharded"):
            refused()
    return "refused"


@pytest.mark.slow
@pytest.mark.parametrize("call", HANDLES)
def test_a_module_that_was_sharded_afterwards_or_before_is_refused(call: str) -> None:
    assert together(sharded_afterwards, 1, call) == ["refused"]
