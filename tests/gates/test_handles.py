"""Handles on parameters: copied with a model, and refused for shards."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import OptionError
from tests.ranks.processes import together

HANDLES: dict[str, Callable[[nn.Module], Any]] = {
    "scaled": lambda module: gg.scaled(module, factor=0.1),
    "train_rows": lambda module: gg.train_rows(module, [1]),
}


@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copied", "pickled"]
)
@pytest.mark.parametrize("call", HANDLES)
def test_nothing_acts_on_a_copy_of_a_model_that_keeps_its_handle(
    call: str, twin_of: Callable[[Any], Any]
) -> None:
    module = nn.Linear(2, 3)
    module.handle = HANDLES[call](module)  # type: ignore[assignment]
    twin = twin_of(module)
    for each in (module, twin):
        each(torch.ones(1, 2)).sum().backward()
    assert torch.equal(twin.weight.grad, torch.ones(3, 2))
    assert not torch.equal(module.weight.grad, twin.weight.grad)
    before = twin.weight.detach().clone()
    SGD(twin.parameters(), lr=0.1).step()
    assert torch.allclose(twin.weight, before - 0.1)


def sharded_before(rank: int, call: str) -> str:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    fully_shard(model)
    with pytest.raises(OptionError, match="sharded"):
        HANDLES[call](model[0])
    return "refused"


@pytest.mark.slow
@pytest.mark.parametrize("call", HANDLES)
def test_a_module_that_was_sharded_before_is_refused(call: str) -> None:
    assert together(sharded_before, 1, call) == ["refused"]
