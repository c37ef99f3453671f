"""The verdict on a user's own loop: each usual mistake is told by its factor and its cause."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import GraphError
from gradgate.testing import assert_exact_update, compare_update
from tests.tensors import on_device, randn

Batch = tuple[Tensor, Tensor]


@dataclass
class Training:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Batch

    def loss(self, batch: Batch) -> Tensor:
        x, y = batch
        return (self.model(x) - y).pow(2).mean()

    def parts(self, batch: Batch, size: int) -> list[Batch]:
        return list(zip(*(tensor.split(size) for tensor in batch), strict=True))

    def backward(self, batch: Batch, size: int, divisor: float) -> None:
        for part in self.parts(batch, size):
            (self.loss(part) / divisor).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.fixture
def training() -> Training:
    model = on_device(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return Training(model, optimizer, (randn(12, 3), randn(12, 1)))


def exact(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 4)
    t.step()


def by_gradgate(t: Training, batch: Batch) -> None:
    with gg.Accumulator(t.optimizer).update() as update:
        for part in update.micro_batches(t.parts(batch, 5)):
            update.backward(t.loss(part), count=len(part[0]))


def undivided(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 1)
    t.step()


def divided_twice(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 16)
    t.step()


def unequal(t: Training, batch: Batch) -> None:
    t.backward(batch, 5, 3)
    t.step()


def step_at_the_first(t: Training, batch: Batch) -> None:
    for number, part in enumerate(t.parts(batch, 3)):
        (t.loss(part) / 4).backward()
        if number % 4 == 0:
            t.step()


def never_steps(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 4)


def clears_too_early(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 4)
    t.optimizer.zero_grad(set_to_none=False)
    t.step()


def clips(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 4)
    torch.nn.utils.clip_grad_norm_(t.model.parameters(), 1e-3)
    t.step()


def keeps_the_scale(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, 4 / 65536)
    t.step()


def sums_over_samples(t: Training, batch: Batch) -> None:
    for x, y in t.parts(batch, 6):
        (t.model(x) - y).pow(2).sum().backward()
    t.step()


def turns_the_sign(t: Training, batch: Batch) -> None:
    t.backward(batch, 3, -4)
    t.step()


def steps_twice(t: Training, batch: Batch) -> None:
    t.backward(batch, 12, 1)
    t.step()
    t.step()


def weighs_the_loss(t: Training, batch: Batch) -> None:
    t.backward(batch, 12, 1 / 1.37)
    t.step()


def short_window(t: Training, batch: Batch) -> None:
    t.backward(batch, 4, 8)  # 3 of 8 micro-batches
    t.step()


def with_a_closure(t: Training, batch: Batch) -> None:
    """As Lightning steps: the last backward runs inside the step."""
    *first, last = t.parts(batch, 3)
    for part in first:
        (t.loss(part) / 4).backward()

    def closure() -> Tensor:
        loss = t.loss(last) / 4
        loss.backward()
        return loss

    t.optimizer.step(closure)
    t.optimizer.zero_grad()


@pytest.mark.parametrize("loop", [exact, by_gradgate, with_a_closure])
def test_a_right_loop_passes(training: Training, loop: Callable[[Training, Batch], None]) -> None:
    verdict = assert_exact_update(
        lambda batch: loop(training, batch),
        training.batch,
        optimizer=training.optimizer,
        loss_fn=training.loss,
        rtol=1e-10,
    )
    assert verdict.exact
    assert str(verdict).startswith("exact: within ")


MISTAKES = [
    (undivided, "4 times the whole batch's: the means of 4 micro-batches were added and not divided"),
    (divided_twice, "0.25 times the whole batch's: it was divided twice by the 4 micro-batches"),
    (unequal, "by no one factor"),
    (unequal, "3 micro-batches with unequal numbers of items"),
    (step_at_the_first, "stepped after 1 of 4 backward passes"),
    (never_steps, "received no gradient: the loop never stepped"),
    (clears_too_early, "it is zero. Gradients were cleared between backward and step"),
    (clips, "it was clipped"),
    (keeps_the_scale, "a loss scale of 65536 is still in it"),
    (sums_over_samples, "12 times the whole batch's: a loss was summed over 12 items"),
    (turns_the_sign, "its sign is turned"),
    (steps_twice, "the first step is exact, but the loop stepped 2 times"),
    (weighs_the_loss, "1.37 times the whole batch's: a constant factor"),
    (short_window, "a short window was divided by the full number"),
]


@pytest.mark.parametrize(("loop", "text"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_is_told_by_its_factor_and_cause(
    training: Training, loop: Callable[[Training, Batch], None], text: str
) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_exact_update(
            lambda batch: loop(training, batch),
            training.batch,
            optimizer=training.optimizer,
            loss_fn=training.loss,
        )
    assert text in str(raised.value)


def test_gradients_from_before_are_told(training: Training) -> None:
    training.loss(training.batch).backward()
    left = training.model[0].weight.grad
    before = left.clone()
    verdict = compare_update(
        lambda batch: exact(training, batch),
        training.batch,
        optimizer=training.optimizer,
        loss_fn=training.loss,
    )
    assert "gradients from before the loop were still there" in str(verdict)
    assert training.model[0].weight.grad is left
    assert torch.equal(left, before)


@pytest.mark.parametrize(
    ("layer", "cause"), [(nn.BatchNorm1d(4), "BatchNorm1d '1'"), (nn.Dropout(0.5), "Dropout '1'")]
)
def test_layers_that_make_a_cut_inexact_are_named(layer: nn.Module, cause: str) -> None:
    # Two in a row: one dropout alone draws the same numbers for a batch and for its parts in order.
    model = on_device(nn.Sequential(nn.Linear(3, 4), layer, nn.Dropout(0.5), nn.Linear(4, 1)))
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), (randn(12, 3), randn(12, 1)))
    verdict = compare_update(
        lambda batch: exact(training, batch),
        training.batch,
        optimizer=training.optimizer,
        loss_fn=training.loss,
        model=model,
    )
    assert cause in str(verdict)


def test_everything_is_put_back(training: Training) -> None:
    exact(training, training.batch)  # so that Adam has a state
    parameters = [p.detach().clone() for p in training.model.parameters()]
    state = torch.optim.Adam(training.model.parameters())
    state.load_state_dict(training.optimizer.state_dict())
    random = torch.get_rng_state()
    compare_update(
        lambda batch: exact(training, (batch[0] + torch.randn_like(batch[0]), batch[1])),
        training.batch,
        optimizer=training.optimizer,
        loss_fn=training.loss,
    )
    assert all(torch.equal(a, b) for a, b in zip(parameters, training.model.parameters(), strict=True))
    for p in training.model.parameters():
        assert p.grad is None
        assert all(
            torch.equal(state.state[p][key], training.optimizer.state[p][key]) for key in state.state[p]
        )
    assert torch.equal(random, torch.get_rng_state())


def test_a_loss_of_another_model_is_refused(training: Training) -> None:
    other = on_device(nn.Linear(3, 1))
    with pytest.raises(GraphError, match=r"^assert_exact_update: loss_fn\(batch\) reaches none"):
        compare_update(
            lambda batch: exact(training, batch),
            training.batch,
            optimizer=training.optimizer,
            loss_fn=lambda batch: other(batch[0]).mean(),
        )
