"""Law 9. A loss over the representations of a window has the gradient of the unsplit batch, however it is split."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradgate as gg
from tests.coupled import LOSSES, Towers, batch, gradient, in_one_graph, sizes_of
from tests.reference import assert_same, received

CUTS = st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(lambda cut: sum(cut) >= 2)


def update_by(model: Towers, name: str, parts: list[Tensor]) -> list[Tensor | None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=model)
    with received(optimizer) as steps, accumulator.update() as update:
        update.backward_coupled(model, parts, lambda z: LOSSES[name](model, z))
    assert len(steps) == 1
    return steps[0]


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=15)
@given(cut=CUTS)
def test_any_split_gives_the_gradient_of_the_unsplit_batch(name: str, cut: list[int]) -> None:
    model = Towers()
    expected = gradient(LOSSES[name](model, model(batch(sum(cut)))), model)
    assert_same(update_by(model, name, sizes_of(cut)), expected)


@settings(max_examples=15)
@given(cut=CUTS)
def test_dropout_draws_the_same_masks_in_both_passes(cut: list[int]) -> None:
    model, parts = Towers(dropout=0.5), sizes_of(cut)
    torch.manual_seed(3)
    expected, after = in_one_graph(model, LOSSES["contrastive"], parts), torch.rand(3)
    torch.manual_seed(3)
    assert_same(update_by(model, "contrastive", parts), expected)
    assert torch.equal(torch.rand(3), after)  # and whatever comes next draws what it would have drawn


@pytest.mark.filterwarnings("ignore::gradgate.errors.CoupledLossWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_the_law_rejects_a_loss_per_micro_batch(name: str) -> None:
    model, parts = Towers(), sizes_of([4, 3, 5])
    expected = gradient(LOSSES[name](model, model(batch(12))), model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with received(optimizer) as steps, gg.Accumulator(optimizer).update() as update:
        for part in update.micro_batches(parts):
            update.backward(LOSSES[name](model, model(part)), count=len(part))
    with pytest.raises(AssertionError, match="off by"):
        assert_same(steps[0], expected)
