"""Modules that are frozen: what a handle does, where it works, and what is given back. Law 4 is in tests/laws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradgate as gg
from gradgate.gates import Frozen
from tests.laws.modules import Averaging, Counter, Counting, condition
from tests.tensors import on_device


def model() -> nn.Sequential:
    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Counting(), nn.Dropout(), Averaging())
    return on_device(nn.Sequential(nn.Linear(4, 4), backbone, nn.Linear(4, 1)))


# -- handles ----------------------------------------------------------------------------------------


def tree() -> nn.Sequential:
    """Modules within modules, one of which shares a parameter with another and requires none of the other's."""
    whole = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), Counter(), nn.Linear(2, 2)), nn.Linear(2, 2)
    )
    whole[2].weight = whole[0].weight
    whole[1][2].bias.requires_grad_(False)
    whole[1][0].eval()
    whole[0].weight.grad = torch.ones(2, 2)
    return whole


@settings(max_examples=60)
@given(data=st.data())
def test_handles_over_one_tree_end_in_any_order(data: st.DataObject) -> None:
    """A module is frozen as long as any handle holds it; then all is as it was before the first."""
    whole = tree()
    modules = list(whole.modules())
    before, required = condition(whole), [one for one in whole.parameters() if one.requires_grad]
    handles: list[tuple[Frozen, set[nn.Module]]] = []

    def check() -> None:
        held = {part for _, parts in handles for part in parts}
        assert not any(part.training for part in held)
        frozen = {one for part in held for one in part.parameters(recurse=False)}
        assert {one for one in required if not one.requires_grad} == frozen & set(required)
        assert all(one.grad is None for one in frozen)

    some = st.lists(st.sampled_from(modules), min_size=1, max_size=3)
    for _ in range(data.draw(st.integers(1, 6))):
        if not handles or data.draw(st.booleans()):
            chosen = data.draw(some)
            handles.append((gg.frozen(*chosen), {part for one in chosen for part in one.modules()}))
        else:
            handle, parts = data.draw(st.sampled_from(handles))
            given_back = data.draw(st.sampled_from(sorted(parts, key=modules.index)))
            handle.unfreeze(given_back)
            parts -= set(given_back.modules())
            handles = [each for each in handles if each[1]]
        check()
    for handle, _ in data.draw(st.permutations(handles)):
        handle.unfreeze()
    assert condition(whole) == before


def test_what_cannot_be_frozen_as_a_whole_is_not_frozen_in_part() -> None:
    whole = model()
    whole[2]._parameters["weight"] = whole[2].weight * 1  # no leaf: it has to require gradient
    before = condition(whole[:2])
    with pytest.raises(RuntimeError, match="leaf"):
        gg.frozen(whole)
    assert condition(whole[:2]) == before


# -- shared parameters ------------------------------------------------------------------------------


def test_a_weight_that_was_tied_while_frozen_stays_with_the_module_that_held_it() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    handle, own = gg.frozen(one, other), other.weight
    other.weight = one.weight
    handle.unfreeze(other)
    assert own.requires_grad
    assert not one.weight.requires_grad


# -- modes ------------------------------------------------------------------------------------------


def test_a_train_method_of_ones_own_is_kept() -> None:
    class Stubborn(nn.Sequential):
        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self[0].eval()
            return self

    one, other = Stubborn(nn.BatchNorm1d(2), nn.Dropout()), nn.Sequential(nn.Dropout())
    other.train = lambda mode=True: other  # a usual way to switch a module off for good
    own = other.train
    handle = gg.frozen(one, other)
    handle.unfreeze(one[0])
    handle.unfreeze(one[1])
    one.eval()
    one.train()
    other.train()
    assert (one.training, one[0].training, one[1].training) == (False, False, True)
    handle.unfreeze()
    assert other.train is own
    assert "train" not in vars(one)
