"""Copies of frozen modules can be trained, however they are made."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import gradgate as gg
from tests.laws.modules import Counter, condition


def to_copy() -> nn.Sequential:
    """A model with what may be different from module to module; two of its layers share a parameter."""
    whole = nn.Sequential(
        nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), Counter(), nn.Dropout(0.5)), nn.Linear(4, 4)
    )
    whole[2].weight = whole[0].weight
    whole[2].bias.requires_grad_(False)
    whole[1][2].eval()
    whole(torch.randn(8, 4)).sum().backward()
    return whole


def saved(whole: Any) -> Any:
    torch.save(whole, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


def averaged(whole: nn.Module) -> nn.Module:
    average = AveragedModel(whole, use_buffers=True)
    average.update_parameters(whole)
    return average.module


COPIES: dict[str, Callable[[Any], Any]] = {
    "copied": copy.deepcopy,
    "pickled": lambda whole: pickle.loads(pickle.dumps(whole)),
    "saved": saved,
    "averaged": averaged,
}


def condition_of_copy(whole: nn.Module) -> list[Any]:
    """All that is in the attributes of a module's parts, but for tensors and hooks."""
    return [(name, sorted(vars(part))) for name, part in whole.named_modules()]


@pytest.mark.parametrize("within", [False, True], ids=["all of it frozen", "a part of it frozen"])
@pytest.mark.parametrize("twin_of", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_frozen_model_can_be_trained(twin_of: Callable[[Any], Any], within: bool) -> None:
    whole = to_copy()
    before = condition_of_copy(whole)
    with gg.frozen(whole[1], whole[0]) if within else gg.frozen(whole), gg.frozen(whole[1]):
        condition_of_frozen = condition(whole)
        twin = twin_of(whole)
        assert condition(whole) == condition_of_frozen
        assert condition_of_copy(twin) == before
        assert not any(one.requires_grad for one in twin[1].parameters())
        assert not any(one.training for one in twin[1].modules())
        assert twin[0].weight is twin[2].weight
        assert all(map(torch.equal, twin.state_dict().values(), whole.state_dict().values()))
        assert all(one.training for one in twin.train().requires_grad_().modules())
        moved = twin[1][0].running_mean.clone()
        twin(torch.randn(8, 4)).sum().backward()
        assert twin[0].weight.grad is not None
        assert not torch.equal(twin[1][0].running_mean, moved)
        assert condition(whole) == condition_of_frozen
        with gg.frozen(twin):
            assert not any(one.training for one in twin.train().modules())
        assert condition_of_copy(twin_of(twin_of(whole))) == before


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, saved], ids=["shallow", "copied", "saved"])
def test_a_copied_handle_holds_nothing(twin_of: Callable[[Any], Any]) -> None:
    whole = to_copy()
    handle = gg.frozen(whole)
    copied = twin_of(handle)
    copied.unfreeze()
    assert repr(copied).startswith("Frozen(nothing")
    assert not whole.train().training
    handle.unfreeze()
    assert whole.train().training


class KeepsItsHandle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.handle = gg.frozen(self.body)


@pytest.mark.parametrize("twin_of", [copy.deepcopy, saved], ids=["copied", "saved"])
def test_a_model_that_keeps_its_handle_is_copied(twin_of: Callable[[Any], Any]) -> None:
    whole = KeepsItsHandle()
    twin = twin_of(whole)
    assert twin.train().body.training
    assert not whole.train().body.training


class CopiesItself(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesItself":
        twin = CopiesItself(4, 4)
        twin.__dict__ = {**vars(self), "_parameters": copy.deepcopy(self._parameters, memo)}
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "saved": True}


@pytest.mark.parametrize("twin_of", [copy.deepcopy, saved], ids=["copied", "saved"])
def test_a_module_that_copies_itself_copies_no_freezing(twin_of: Callable[[Any], Any]) -> None:
    module = CopiesItself(4, 4)
    before = condition_of_copy(twin_of(module))
    with gg.frozen(module):
        twin = twin_of(module)
        assert condition_of_copy(twin) == before
        assert twin.train().training
    assert condition_of_copy(twin_of(module)) == before
