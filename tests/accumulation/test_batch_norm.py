"""Batch norms in a window: named once; and on request one update of running statistics per window."""

import gc
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg
from gradgate.errors import BatchNormWarning, UpdateError
from tests.accumulation.one_weight import StopError, stopped_by
from tests.laws.standing import same
from tests.messages import raises, warns
from tests.silence import no_warning
from tests.tensors import DEVICE

QUIET = pytest.mark.filterwarnings("ignore::gradgate.errors.BatchNormWarning")
CUTS = [[4, 4, 4], [5, 2, 3, 2], [12], [2] * 6]


def net(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3, **options), nn.Linear(3, 2)).to(DEVICE, torch.float64)


def batch(samples: int = 12, *shape: int) -> Tensor:
    torch.manual_seed(1)
    return (torch.randn(samples, 3, *shape, dtype=torch.float64) * 2 + 5).to(DEVICE)


def run(model: nn.Module, x: Tensor, cut: list[int], **options: Any) -> gg.Accumulator:
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, **options)
    with accumulator.update() as update:
        for part in update.micro_batches(x.split(cut)):
            update.backward(model(part).pow(2).mean(), count=len(part))
    return accumulator


def run_without_a_loop(model: nn.Module, x: Tensor, cut: list[int], **options: Any) -> None:
    with gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, **options).update() as update:
        for part in x.split(cut):
            update.backward(model(part).pow(2).mean(), count=len(part), name="loss")


# -- said once, by name ------------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x)


def test_it_is_said_once_by_the_modules_name() -> None:
    model = nn.ModuleDict({"encoder": Encoder(), "head": nn.Linear(3, 1)})
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model)

    def train() -> None:
        with accumulator.update() as update:
            for x in update.micro_batches(torch.randn(3, 4, 3).unbind()):
                loss = model["head"](model["encoder"](x)).mean()
                update.backward(loss)

    with pytest.warns(BatchNormWarning) as said:
        train()
    train()  # as an error it would be heard
    assert len(said) == 1
    assert said[0].filename == __file__
    assert str(said[0].message).startswith(
        "BatchNorm1d 'encoder.stem.1': in training mode, a batch norm normalizes each micro-batch by its own mean "
        "and variance, so no split gives the gradient of the whole batch."
    )
    assert "batch_norm='window'" in str(said[0].message)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)), "BatchNorm2d '1'"),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "BatchNorm2d '1'"),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, affine=False)), "BatchNorm2d '1'"),
        (nn.BatchNorm2d(3), "BatchNorm2d"),
    ],
    ids=["ordinary", "without running statistics", "without weights", "alone"],
)
def test_every_kind_is_seen(model: nn.Module, kind: str) -> None:
    gc.collect()  # batch norms of other tests are not to be named
    with pytest.warns(BatchNormWarning, match=f"^{kind}"):
        run(model, batch(6, 2, 2).float().cpu(), [3, 3])


def test_many_are_counted() -> None:
    layers = [layer for _ in range(5) for layer in (nn.Linear(3, 3), nn.BatchNorm1d(3))]
    with warns(
        BatchNormWarning, "a batch norm in training", "'1', BatchNorm1d '3', BatchNorm1d '5' and 2 more"
    ):
        run(nn.Sequential(*layers), batch().float().cpu(), [6, 6])


def test_it_is_said_of_the_loss_that_has_it() -> None:
    model = net()
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model)

    def train() -> None:
        with accumulator.update() as update:
            for x in update.micro_batches(batch().split(6)):
                update.backward(model[1].weight.pow(2).mean(), count=1)
                update.backward(model(x).mean(), count=len(x))

    with pytest.warns(BatchNormWarning):
        train()


def test_it_is_said_without_a_loop_too() -> None:
    with pytest.warns(BatchNormWarning):
        run_without_a_loop(net(), batch(), [6, 6])


def test_it_is_not_said_where_it_does_not_matter() -> None:
    """In eval mode, in a window of one, with other norms, with a batch norm outside the model."""
    with no_warning():
        run(net().eval(), batch(), [4, 8])
        run(net(), batch(), [12])
        run(nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3)).to(DEVICE, torch.float64), batch(), [4, 8])
        other = net()
        other(batch())
        run(nn.Linear(3, 1).to(DEVICE, torch.float64), batch(), [4, 8])
    with pytest.warns(BatchNormWarning):  # so that the silence above can be broken
        run(net(), batch(), [4, 8])


def test_as_an_error_it_stops_the_window_and_leaves_all_as_before() -> None:
    model = net()
    before = {name: value.clone() for name, value in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BatchNormWarning):
            run(model, batch(), [4, 8])
    assert same(before, dict(model.named_parameters()))
    assert model[1].weight.grad is None


# -- one update of running statistics per window -----------------------------------------------------


@QUIET
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("options", [{}, {"momentum": 0.3}, {"momentum": None}, {"affine": False}], ids=str)
@pytest.mark.parametrize("shape", [(), (4,)], ids=["features", "sequences"])
def test_a_first_layer_gets_exactly_the_whole_batchs_statistics(
    cut: list[int], options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    ours, whole = net(**options)[0], net(**options)[0]
    head = (
        nn.Conv1d(3, 1, 1).to(DEVICE, torch.float64) if shape else nn.Linear(3, 1).to(DEVICE, torch.float64)
    )
    for _ in range(3):
        x = batch(12, *shape)
        run(nn.Sequential(ours, head), x, cut, batch_norm="window")
        whole(x)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-12, atol=1e-12)
    assert ours.num_batches_tracked == 3
    assert ours.momentum == whole.momentum
    assert not ours._forward_hooks


@QUIET
def test_as_torch_runs_it_the_statistics_differ() -> None:
    """So that the test above can fail."""
    ours, whole = net(), net()
    run(ours, batch(), [4, 8])
    whole(batch())
    assert ours[0].num_batches_tracked == 2
    assert not torch.allclose(ours[0].running_mean, whole[0].running_mean)


@QUIET
def test_a_module_that_runs_twice_in_a_micro_batch_moves_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3).double()
            self.scale = nn.Parameter(torch.ones(3).double())

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x * 1) + self.norm(x * 3) * self.scale

    ours, whole = Twice().to(DEVICE), Twice().to(DEVICE)
    run(ours, batch(), [5, 7], batch_norm="window")
    whole(batch())
    torch.testing.assert_close(ours.norm.running_mean, whole.norm.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.norm.running_var, whole.norm.running_var, rtol=1e-12, atol=0)
    assert ours.norm.num_batches_tracked == 2


@QUIET
@pytest.mark.parametrize("how", ["exception", "skipped", "not finite"])
def test_they_are_put_back_if_no_step_is_made(how: str) -> None:
    model = net()
    run(model, batch(), [12])
    before = {name: value.clone() for name, value in model.named_buffers()}
    accumulator = gg.Accumulator(
        SGD(model.parameters(), lr=0.1),
        model=model,
        batch_norm="window",
        nonfinite="skip" if how == "skipped" else "raise",
    )
    expected = {"exception": StopError, "not finite": gg.errors.NonfiniteError, "skipped": None}[how]
    with stopped_by(expected) if expected else warnings.catch_warnings(), accumulator.update() as update:
        for x in update.micro_batches(batch().split([4, 8])):
            update.backward(model(x).mean() * (1 if how == "exception" else float("nan")), count=len(x))
        if how == "exception":
            raise StopError
    assert same(before, dict(model.named_buffers()))
    assert model[0].momentum == 0.1
    assert not model[0]._forward_hooks


@QUIET
def test_modules_in_eval_mode_stand_still() -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(2).to(DEVICE, torch.float64).eval())
    before = {name: value.clone() for name, value in model[1].named_buffers()}
    run(model, batch(), [4, 8], batch_norm="window")
    assert same(before, dict(model[1].named_buffers()))
    assert model[0][0].num_batches_tracked == 1


@QUIET
def test_a_head_that_was_added_later_is_pooled_too() -> None:
    body = nn.Linear(3, 3).to(DEVICE, torch.float64)
    accumulator = gg.Accumulator(SGD(body.parameters(), lr=0.1), model=body, batch_norm="window")
    with accumulator.update() as update:
        update.backward(body(batch()).mean())
    head = net()
    accumulator._settings.optimizers[0].add_param_group({"params": list(head.parameters())})
    accumulator.model = [body, head]
    with accumulator.update() as update:
        for x in update.micro_batches(batch().split(4)):
            update.backward(head(body(x)).mean())
    assert head[0].num_batches_tracked == 1


@QUIET
def test_two_open_windows_over_one_module_move_it_once() -> None:
    model, head = net(), nn.ParameterList([torch.zeros((), dtype=torch.float64, device=DEVICE)])
    whole = net()
    first = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, batch_norm="window")
    second = gg.Accumulator(SGD(head.parameters(), lr=0.1), model=[model, head], batch_norm="window")
    with first.update() as one, second.update() as two:
        for x in one.micro_batches(batch().split([4, 8])):
            out = model(x)
            one.backward(out.pow(2).mean(), count=len(x), retain_graph=True, name="one")
            two.backward((out.mean() * head[0]), count=len(x), name="two")
    whole(batch())
    torch.testing.assert_close(model[0].running_mean, whole[0].running_mean, rtol=1e-12, atol=0)
    assert (model[0].momentum, model[0].num_batches_tracked) == (0.1, 1)


@QUIET
def test_a_window_whose_statistics_stand_aside_cannot_be_saved() -> None:
    model = net()
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=0.1), model=model, batch_norm="window")
    with accumulator.update() as update:
        update.backward(model(batch()).mean())
        with raises(UpdateError, "a state in a batch-norm window"):
            accumulator.state_dict()
    assert accumulator.state_dict()["window"] is None


@QUIET
def test_without_a_loop_it_is_not_known_where_a_micro_batch_begins() -> None:
    model = net()
    before = {name: value.clone() for name, value in model.named_buffers()}
    run_without_a_loop(model, batch(), [12], batch_norm="window")
    assert model[0].num_batches_tracked == 1
    model.load_state_dict({**model.state_dict(), **before})
    with raises(UpdateError, "batch norms outside of micro_batches"):
        run_without_a_loop(model, batch(), [4, 8], batch_norm="window")
    assert same(before, dict(model.named_buffers()))


@QUIET
def test_an_empty_micro_batch_does_not_poison_them() -> None:
    ours, whole = net(), net()
    run(ours, batch(), [4, 0, 8], batch_norm="window")
    whole(batch())
    torch.testing.assert_close(ours[0].running_mean, whole[0].running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours[0].running_var, whole[0].running_var, rtol=1e-12, atol=0)
