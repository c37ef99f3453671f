"""Between two micro-batches of a window with ``batch_norm="window"``, the model is as before the window."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import BatchNormWarning
from tests.accumulation.test_batch_norm import QUIET, batch, net, run
from tests.laws.standing import same


def by_pickle(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copied: nn.Module = torch.load(file, weights_only=False)
    return copied


COPIES = [copy.deepcopy, by_pickle, lambda model: torch.optim.swa_utils.AveragedModel(model).module]


@QUIET
def test_an_evaluation_in_the_window_uses_the_running_statistics_from_before_it() -> None:
    ours, whole = net(), net()
    x, other = batch(), batch() * 3
    run(ours, x, [12])
    whole.load_state_dict(ours.state_dict())
    before, expected = copy.deepcopy(ours.state_dict()), copy.deepcopy(ours).eval()(other)
    accumulator = gg.Accumulator(SGD(ours.parameters(), lr=0.0), model=ours, batch_norm="window")
    with accumulator.update() as update:
        for part in update.micro_batches(x.split([5, 3, 4])):
            update.backward(ours(part).pow(2).mean(), count=len(part))
            ours.eval()
            with torch.no_grad():
                assert torch.equal(ours(other), expected)
            assert same(before, ours.state_dict())
            ours.train()
    whole(x)
    torch.testing.assert_close(ours.state_dict(), whole.state_dict(), rtol=1e-12, atol=1e-12)


@QUIET
@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle", "AveragedModel"])
def test_a_copy_made_in_the_window_is_one_of_the_model_outside(copied: Callable[[Any], Any]) -> None:
    ours = net(momentum=0.3)
    run(ours, batch(), [12])
    expected = copy.deepcopy(ours)
    accumulator = gg.Accumulator(SGD(ours.parameters(), lr=0.1), model=ours, batch_norm="window")
    with accumulator.update() as update:
        for part in update.micro_batches(batch().split([5, 7])):
            update.backward(ours(part).pow(2).mean(), count=len(part))
            best = copied(ours)
    assert type(best[0]) is nn.BatchNorm1d
    assert vars(best[0]).keys() == vars(expected[0]).keys()
    assert best[0].momentum == 0.3
    assert same(dict(best.named_buffers()), dict(expected.named_buffers()))
    for model in (best, expected):  # the copy trains on, in a window and without one
        model(batch() * 2)
        run(model, batch() * 3, [6, 6], batch_norm="window")
    assert same(dict(best.named_buffers()), dict(expected.named_buffers()))


@QUIET
def test_a_forward_pass_that_fails_in_the_window_leaves_the_model_as_before() -> None:
    model = net()
    run(model, batch(), [12])
    before, momentum = copy.deepcopy(model.state_dict()), model[0].momentum
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, batch_norm="window")
    with accumulator.update() as update:
        for part in update.micro_batches(batch().split(6)):
            with pytest.raises(ValueError, match="more than 1 value per channel"):
                model(part[:1])
            assert same(before, model.state_dict())
            assert model[0].momentum == momentum
            update.backward(model(part).pow(2).mean(), count=len(part))
    assert model[0].num_batches_tracked == 2


@QUIET
def test_a_compiled_model_gets_exactly_the_whole_batchs_statistics() -> None:
    """Also if it was compiled before the window, when nothing was pooled, and in windows after the first."""
    ours, whole = net(), net()
    compiled: Any = torch.compile(ours, backend="eager")
    for model in (compiled, whole):
        model(batch())
    accumulator = gg.Accumulator(SGD(ours.parameters(), lr=0.1), model=compiled, batch_norm="window")
    for cut in ([5, 3, 4], [6, 6], [12]):
        with accumulator.update() as update:
            for part in update.micro_batches(batch().split(cut)):
                update.backward(compiled(part).pow(2).mean(), count=len(part))
        whole(batch())
    for model in (compiled, whole):
        model(batch())
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
def test_train_called_in_the_block_updates_them_once(affine: bool) -> None:
    """As after a validation that left the model in eval mode."""
    ours = nn.Sequential(nn.Linear(3, 3).to(batch()), *net(affine=affine))
    whole = copy.deepcopy(ours)
    accumulator = gg.Accumulator(SGD(ours.parameters(), lr=0.0), model=ours, batch_norm="window")

    def train() -> None:
        ours.eval()
        with accumulator.update() as update:
            for part in update.micro_batches(batch().split([5, 3, 4])):
                ours.train()
                update.backward(ours(part).pow(2).mean(), count=len(part))

    with pytest.warns(BatchNormWarning) as said:
        train()
    train()
    for _ in range(2):
        whole(batch())
    torch.testing.assert_close(ours.state_dict(), whole.state_dict(), rtol=1e-12, atol=1e-12)
    assert str(said[0].message).startswith("BatchNorm1d '1': ")
    assert "pools torch's own modules only" not in str(said[0].message)


def test_with_batch_norms_in_eval_mode_a_window_needs_no_loop_and_can_be_saved() -> None:
    model = net().eval()
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, batch_norm="window")
    with accumulator.update() as update:
        for part in batch().split(6):
            update.backward(model(part).pow(2).mean(), count=len(part), name="loss")
        assert accumulator.state_dict()["window"]["micro_batches"] == 2
    assert update.stepped
