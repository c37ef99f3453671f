"""The verdict on a user's own loop: how far its gradient is from the whole batch's, and by which factor."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import GraphError, ShapeError
from gradgate.testing import Verdict, assert_exact_update, compare_update
from tests.silence import no_warning
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


def steps_twice(t: Training, batch: Batch) -> None:
    t.backward(batch, 12, 1)
    t.step()
    t.step()


def steps_for_each(t: Training, batch: Batch) -> None:
    for part in t.parts(batch, 3):
        (t.loss(part) / 4).backward()
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
    (undivided, "received is 4 times the whole batch's."),
    (divided_twice, "received is 0.25 times the whole batch's."),
    (unequal, "not a multiple of it"),
    (step_at_the_first, "not a multiple of it"),
    (never_steps, "the loop never stepped the optimizer"),
    (clears_too_early, "received is 0 times the whole batch's."),
    (steps_twice, "the first step is exact, but the loop stepped 2 times"),
    (steps_for_each, "The loop stepped 4 times; this is its first step."),
]


@pytest.mark.parametrize(("loop", "text"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_verdict_states_how_the_gradient_differs(
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


def test_gradients_from_before_count_and_are_restored(training: Training) -> None:
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
    assert verdict.factor == pytest.approx(2.0)
    assert training.model[0].weight.grad is left
    assert torch.equal(left, before)


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


def test_a_quiet_head_that_gets_no_gradient_is_told_by_name() -> None:
    model = on_device(TwoHeads())
    x, optimizer = randn(12, 3), torch.optim.SGD(model.parameters(), lr=0.1)

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
    assert verdict.parameter == "'weight'"
    assert verdict.error > 1e-4
    assert not verdict.exact


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
@pytest.mark.parametrize("seed", [19, 48])
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
    assert "off by inf times the whole batch's gradient at '2.bias'" in str(verdict)


# -- what a loop may do otherwise -------------------------------------------------------------------------


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


# -- what the graph of a loss does not show ----------------------------------------------------------


class Centred(nn.Module):
    """Subtracts the mean of the batch, without a graph."""

    def forward(self, h: Tensor) -> Tensor:
        return h - h.detach().mean(0)


def mixed_by_statistics() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Centred(), nn.Linear(4, 1))
    return on_device(model), (randn(12, 3), randn(12, 1))


def mixed_by_attention() -> tuple[nn.Module, Batch]:
    """Forget ``batch_first=True``, with a loss for each token."""
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 1)).eval()  # without dropout
    return on_device(model), (randn(12, 5, 4), randn(12, 5, 1))


@pytest.mark.parametrize("mixed", [mixed_by_statistics, mixed_by_attention])
def test_mixed_samples_that_no_warning_tells_are_told(mixed: Callable[[], tuple[nn.Module, Batch]]) -> None:
    model, batch = mixed()
    t = Training(model, torch.optim.Adam(model.parameters(), lr=0.1), batch)
    with no_warning():
        verdict = compare_update(
            lambda batch: by_gradgate(t, batch),
            batch,
            optimizer=t.optimizer,
            model=model,
            loss_fn=t.loss,
        )
    assert not verdict.exact
    assert "not a multiple of it" in str(verdict)
