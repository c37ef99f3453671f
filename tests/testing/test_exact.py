"""The verdict on a user's own loop: each usual mistake is told by its factor and its cause."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import GraphError, ShapeError
from gradgate.testing import Verdict, assert_exact_update, compare_update
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
        model=training.model,
        loss_fn=training.loss,
        rtol=1e-10,
    )
    assert verdict.exact
    assert str(verdict).startswith("exact: within ")


class ByItsBase(torch.optim.SGD):
    """Leaves the step to its base class, which runs the same hooks if there is a plain SGD as well."""

    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        super().step(closure)


@pytest.mark.parametrize(("loop", "steps"), [(exact, 1), (with_a_closure, 1), (steps_twice, 2)])
def test_a_step_that_calls_the_step_of_its_base_class_is_one_step(
    training: Training, loop: Callable[[Training, Batch], None], steps: int
) -> None:
    torch.optim.SGD(training.model.parameters())  # from now on, steps of SGD run hooks
    training.optimizer = ByItsBase(training.model.parameters(), lr=0.1)
    verdict = compare_update(
        lambda batch: loop(training, batch),
        training.batch,
        optimizer=training.optimizer,
        model=training.model,
        loss_fn=training.loss,
    )
    assert verdict.steps == steps
    assert verdict.exact == (steps == 1)


MISTAKES = [
    (undivided, "4 times the whole batch's: the means of 4 micro-batches were added and not divided"),
    (divided_twice, "0.25 times the whole batch's: it was divided twice by the 4 micro-batches"),
    (unequal, "not a multiple of it"),
    (unequal, "3 micro-batches with unequal numbers of items"),
    (step_at_the_first, "stepped after 1 of 4 backward passes"),
    (never_steps, "received no gradient: the loop never stepped"),
    (clears_too_early, "it is zero. Gradients were cleared between backward and step"),
    (clips, "it was clipped"),
    (keeps_the_scale, "it still contains the loss scale 65536"),
    (sums_over_samples, "12 times the whole batch's: a loss was summed over 12 items"),
    (turns_the_sign, "its sign is reversed"),
    (steps_twice, "the first step is exact, but the loop stepped 2 times"),
    (weighs_the_loss, "1.37 times the whole batch's: it was multiplied by a constant factor"),
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
            model=training.model,
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
        model=training.model,
        loss_fn=training.loss,
    )
    assert "gradients from before the loop were still in .grad" in str(verdict)
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
        model=training.model,
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
            model=training.model,
            loss_fn=lambda batch: other(batch[0]).mean(),
        )


# -- each parameter by itself -----------------------------------------------------------------------------


class TwoHeads(nn.Module):
    """A trunk with a head whose gradient is a billion times smaller than the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.loud, self.quiet = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor, *, detached: bool = False) -> Tensor:
        hidden = self.trunk(x).tanh()
        quiet = self.quiet(hidden)
        return 1e3 * self.loud(hidden) + 1e-6 * (quiet.detach() if detached else quiet)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
def test_a_quiet_head_that_gets_no_gradient_is_told_by_name(kind: torch.dtype) -> None:
    model = on_device(TwoHeads()).to(kind)
    x, optimizer = randn(12, 3).to(kind), torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(batch: Tensor, *, detached: bool) -> None:
        for part in batch.split(3):
            (model(part, detached=detached).mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    def judge(*, detached: bool) -> Verdict:
        return compare_update(
            lambda batch: loop(batch, detached=detached),
            x,
            optimizer=optimizer,
            loss_fn=lambda batch: model(batch).mean(),
            model=model,
        )

    assert judge(detached=False).exact
    verdict = judge(detached=True)
    assert not verdict.exact
    assert verdict.error == pytest.approx(1.0)
    assert verdict.parameter in ("'quiet.weight'", "'quiet.bias'")
    assert "'quiet.weight', 'quiet.bias' received no gradient" in str(verdict)


def test_a_gradient_that_the_whole_batch_does_not_have_is_told_by_name(training: Training) -> None:
    extra = on_device(nn.Linear(3, 1, bias=False))
    training.optimizer.add_param_group({"params": extra.parameters()})

    def loop(batch: Batch) -> None:
        training.backward(batch, 3, 4)
        extra(batch[0]).mean().mul(1e-3).backward()
        training.step()

    verdict = compare_update(
        loop, training.batch, optimizer=training.optimizer, loss_fn=training.loss, model=extra
    )
    assert "'weight' received a gradient, though loss_fn gives none" in str(verdict)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex128))


@pytest.mark.parametrize("part", ["real", "imaginary"])
def test_a_complex_gradient_is_compared_in_both_parts(part: str) -> None:
    model = Complex()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 3, dtype=torch.complex128)

    def loss(x: Tensor) -> Tensor:
        return (x * model.weight).sum(1).abs().square().mean()

    def loop(x: Tensor, *, wrong: bool) -> None:
        loss(x).backward()
        if wrong:
            halves = torch.view_as_real(model.weight.grad)
            halves[:, int(part == "imaginary")] *= 1.5
        optimizer.step()
        optimizer.zero_grad()

    for wrong in (False, True):
        verdict = compare_update(
            lambda x, w=wrong: loop(x, wrong=w), x, optimizer=optimizer, model=model, loss_fn=loss
        )
        assert verdict.exact != wrong
    assert verdict.error > 1e-2


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("seed", [19, 42, 46, 48, 51])
def test_a_gradient_that_is_rounding_itself_is_no_difference(kind: torch.dtype, seed: int) -> None:
    """Softmax is the same where all its inputs move alike, so a key's bias has gradient 0, but for rounding."""
    torch.manual_seed(seed)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).mT
            return scores.softmax(-1) @ self.value(x)

    model = on_device(Attention()).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = randn(12, 5, 4).to(kind)

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    def loop(x: Tensor, divisor: float) -> None:
        for part in x.split(3):
            (loss(part) / divisor).backward()
        assert model.key.bias.grad.abs().max() < 1e-4 * model.key.weight.grad.abs().max()
        optimizer.step()
        optimizer.zero_grad()

    assert_exact_update(lambda x: loop(x, 4), x, optimizer=optimizer, model=model, loss_fn=loss)
    assert "4 times the whole batch's" in str(
        compare_update(lambda x: loop(x, 1), x, optimizer=optimizer, model=model, loss_fn=loss)
    )


def test_a_gradient_that_is_not_finite_is_never_exact(training: Training) -> None:
    def loop(batch: Batch) -> None:
        training.backward(batch, 3, 4)
        training.model[2].bias.grad.fill_(float("nan"))
        training.step()

    verdict = compare_update(
        loop, training.batch, optimizer=training.optimizer, model=training.model, loss_fn=training.loss
    )
    assert not verdict.exact
    assert "not finite" in str(verdict)


# -- what a loop may do otherwise -------------------------------------------------------------------------


def test_loss_fn_may_return_the_loss_and_its_count(training: Training) -> None:
    def loss_fn(batch: Batch) -> tuple[Tensor, int]:
        return training.loss(batch), len(batch[0])

    assert_exact_update(
        lambda batch: exact(training, batch),
        training.batch,
        optimizer=training.optimizer,
        model=training.model,
        loss_fn=loss_fn,
    )


def test_a_loss_that_is_no_scalar_is_refused(training: Training) -> None:
    with pytest.raises(ShapeError, match=r"^assert_exact_update: loss_fn\(batch\) returned shape \[12, 1\]"):
        compare_update(
            lambda batch: exact(training, batch),
            training.batch,
            optimizer=training.optimizer,
            model=training.model,
            loss_fn=lambda batch: training.model(batch[0]),
        )


def autocast_model() -> tuple[nn.Module, torch.optim.Optimizer, Batch]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(24, 8), torch.randn(24, 1))


@pytest.mark.parametrize("whole", ["under autocast too", "in float32"])
def test_what_autocast_rounds_is_allowed_for(whole: str) -> None:
    model, optimizer, batch = autocast_model()

    def loss(batch: Batch, *, cast: bool = True) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            return (model(batch[0]) - batch[1]).float().square().mean()

    def loop(batch: Batch, sizes: list[int]) -> None:
        for x, y in zip(batch[0].split(sizes), batch[1].split(sizes), strict=True):
            (loss((x, y)) / len(sizes)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def judge(sizes: list[int]) -> Verdict:
        return compare_update(
            lambda batch: loop(batch, sizes),
            batch,
            optimizer=optimizer,
            model=model,
            loss_fn=lambda batch: loss(batch, cast=whole != "in float32"),
        )

    verdict = judge([6, 6, 6, 6])
    assert verdict.exact
    assert verdict.tolerance == 3e-2
    wrong = judge([20, 1, 1, 2])
    assert not wrong.exact
    assert "autocast (bfloat16)" in str(wrong)


class SAM:
    """Sharpness-aware minimisation as usually written: up the slope, a second pass, down from the start."""

    def __init__(self, base: torch.optim.Optimizer, rho: float) -> None:
        self.base, self.rho = base, rho
        self.parameters = [p for group in base.param_groups for p in group["params"]]

    def climb(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        self.before = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            for p in self.parameters:
                p.add_(self.rho * p.grad / norm)
        self.base.zero_grad()

    def step(self) -> None:
        for p, before in zip(self.parameters, self.before, strict=True):
            p.data = before
        self.base.step()
        self.base.zero_grad()


def test_a_loop_that_moves_parameters_before_its_step_is_not_blamed_on_counts(training: Training) -> None:
    sam = SAM(training.optimizer, rho=0.05)

    def loop(batch: Batch) -> None:
        training.loss(batch).backward()
        sam.climb()
        training.loss(batch).backward()
        sam.step()

    verdict = compare_update(
        loop, training.batch, optimizer=training.optimizer, model=training.model, loss_fn=training.loss
    )
    assert not verdict.exact
    assert "SAM" in verdict.cause
    assert "unequal" not in verdict.cause


def test_a_step_of_another_optimizer_over_the_same_parameters_is_told(training: Training) -> None:
    inner = torch.optim.SGD(training.model.parameters(), lr=0.1)

    def loop(batch: Batch) -> None:
        training.loss(batch).backward()
        inner.step()
        inner.zero_grad()

    verdict = compare_update(
        loop, training.batch, optimizer=training.optimizer, model=training.model, loss_fn=training.loss
    )
    assert "its parameters changed" in str(verdict)
