"""What else a loop of Accelerate does, with exact accumulation: clipping, schedules, several epochs, errors."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator, DistributedType, ParallelismConfig, __version__
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor
from torch.utils.data import DataLoader

import gradgate as gg
from gradgate.errors import CountError, GradientError, OptionError, UpdateError
from gradgate.integrations.accelerate import exact
from tests.integrations.exact_cases import LABELS, TEXTS, error, gradients, net, tokens

WINDOWS = slice(16), slice(16, None)  # of a loader that yields 4, 4, 4, 4, 4 and 1


class Loop:
    """The loop of Accelerate's guide, of which a test changes a part."""

    def __init__(self, *, exactly: bool = True, rate: float = 0.0, **options: Any) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(cpu=True, **(options or {"gradient_accumulation_steps": 4}))
        if exactly:
            exact(self.accelerator)
        self.net = net()
        self.inner = torch.optim.SGD(self.net.parameters(), lr=rate)
        loader = DataLoader(list(zip(TEXTS, LABELS, strict=True)), batch_size=4)
        schedule = torch.optim.lr_scheduler.StepLR(self.inner, 1, 0.5)
        prepared = self.accelerator.prepare(self.net, self.inner, loader, schedule)
        self.model, self.optimizer, self.loader, self.schedule = prepared

    def back(self, x: Tensor, y: Tensor) -> None:
        self.accelerator.backward(tokens(self.model, x, y))

    def between(self) -> None:
        pass

    def run(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.back(x, y)
                    self.between()
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()

    def truth(self, part: slice) -> tuple[Tensor, ...]:
        return torch.autograd.grad(tokens(self.net, TEXTS[part], LABELS[part]), [*self.net.parameters()])


def test_the_mean_is_clipped_once_and_schedules_go_on_as_before() -> None:
    class Clips(Loop):
        def between(self) -> None:
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 0.01)

    rates = []
    for exactly in (False, True):
        loop = Clips(exactly=exactly, rate=1e-9)
        found = gradients(loop.inner, loop.run)
        rates.append(loop.inner.param_groups[0]["lr"])
    assert rates[0] == rates[1] == 1e-9 / 4
    for ours, part in zip(found, WINDOWS, strict=True):
        truth = loop.truth(part)
        norm = torch.nn.utils.get_total_norm(truth)
        assert error(ours, tuple(0.01 / (norm + 1e-6) * gradient for gradient in truth)) < 1e-7


def test_windows_may_cross_epochs() -> None:
    plugin = GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)
    loop = Loop(gradient_accumulation_plugin=plugin)
    first, crossing, last = gradients(loop.inner, lambda: loop.run(epochs=2))
    assert error(first, loop.truth(WINDOWS[0])) < 1e-12
    x, y = (torch.cat([part[16:], part[:8]]) for part in (TEXTS, LABELS))
    truth = torch.autograd.grad(tokens(loop.net, x, y), [*loop.net.parameters()])
    assert error(crossing, truth) < 1e-12
    assert error(last, loop.truth(slice(8, 21))) < 1e-12


@pytest.mark.parametrize("windows_before", [0, 1])
def test_losses_that_bypass_the_accelerator_are_an_error(windows_before: int) -> None:
    class Bypasses(Loop):
        calls = 0

        def back(self, x: Tensor, y: Tensor) -> None:
            self.calls += 1
            if self.calls > 4 * windows_before:
                tokens(self.model, x, y).backward()
            else:
                super().back(x, y)

    loop = Bypasses(rate=0.1)
    steps = []
    loop.inner.register_step_post_hook(lambda *_: steps.append(1))
    with pytest.raises(UpdateError, match="steps on gradients of a window to which no loss was added"):
        loop.run()
    assert len(steps) == windows_before


def test_a_count_may_be_passed() -> None:
    class Counts(Loop):
        def back(self, x: Tensor, y: Tensor) -> None:
            each = F.cross_entropy(self.model(x).transpose(1, 2), y, reduction="none")
            loss = each.sum() / (y != -100).sum()
            if not self.passed:
                self.accelerator.backward(loss)
            self.accelerator.backward(loss, count=(y != -100).sum())

    loop = Counts()
    loop.passed = False
    with pytest.raises(CountError, match=r"Pass the count: accelerator.backward\(loss, count=len\(y\)\)"):
        loop.run()
    loop = Counts()
    loop.passed = True
    for ours, part in zip(gradients(loop.inner, loop.run), WINDOWS, strict=True):
        assert error(ours, loop.truth(part)) < 1e-12


class BackwardTwice(Loop):
    def back(self, x: Tensor, y: Tensor) -> None:
        super().back(x, y)
        super().back(x, y)


class NoBlock(Loop):
    def run(self, epochs: int = 1) -> None:
        for x, y in self.loader:
            self.back(x, y)


class ClipsTheRunningSum(Loop):
    def between(self) -> None:
        self.accelerator.clip_grad_norm_(self.model.parameters(), 0.01)


class ClearsTheRunningSum(Loop):
    def between(self) -> None:
        if not self.accelerator.sync_gradients:
            self.model.zero_grad()


class NeverClears(Loop):
    def run(self, epochs: int = 1) -> None:
        self.optimizer.zero_grad = lambda: None
        super().run(epochs)


class NeverClearsItsOwn(Loop):
    """Its optimizer is not prepared, so the accelerator knows only the model."""

    def run(self, epochs: int = 1) -> None:
        self.accelerator._optimizers.clear()
        for x, y in self.loader:
            with self.accelerator.accumulate(self.model):
                self.back(x, y)
                if self.accelerator.sync_gradients:
                    self.inner.step()


class TwoModelsInTurn(Loop):
    def run(self, epochs: int = 1) -> None:
        head = torch.nn.Linear(9, 1)
        for x, y in self.loader:
            for model in (self.model, head):
                with self.accelerator.accumulate(model):
                    self.back(x, y)
                    self.optimizer.step()
                    self.optimizer.zero_grad()


class StepsPastTheWrapper(Loop):
    def between(self) -> None:
        self.inner.step()


@pytest.mark.parametrize(
    ("kind", "raised", "says"),
    [
        (BackwardTwice, UpdateError, "twice in one block"),
        (NoBlock, UpdateError, "outside `with accelerator.accumulate"),
        (ClipsTheRunningSum, GradientError, "if accelerator.sync_gradients:"),
        (ClearsTheRunningSum, GradientError, "changed between two micro-batches"),
        (NeverClears, GradientError, "were not cleared"),
        (NeverClearsItsOwn, GradientError, "were not cleared"),
        (TwoModelsInTurn, UpdateError, "name different models"),
        (StepsPastTheWrapper, UpdateError, "steps in the middle of a window, after 1 micro-batch"),
    ],
)
def test_what_would_not_be_exact_is_an_error(kind: type[Loop], raised: type[Exception], says: str) -> None:
    loop = kind()
    with pytest.raises(raised, match=says):
        loop.run()


def test_a_prepared_optimizer_that_would_skip_the_step_of_an_accumulator_is_an_error() -> None:
    loop = Loop(exactly=False, rate=1.0)
    loop.accelerator.gradient_state._set_sync_gradients(True)  # one state for all accelerators of a process
    accumulator = gg.Accumulator(loop.optimizer, model=loop.model)

    def step() -> gg.Update:
        return accumulator.step_window(lambda batch: tokens(loop.model, *batch), [(TEXTS, LABELS)])

    assert step().stepped
    before = loop.net[0].weight.detach().clone()
    with loop.accelerator.accumulate(loop.model):  # the first of four micro-batches
        pass
    with pytest.raises(OptionError, match=r"gg.Accumulator\(optimizer.optimizer\)"):
        step()
    assert torch.equal(loop.net[0].weight.detach(), before)


def divides_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, calls = Accelerator.backward, iter(range(1, 100))
    monkeypatch.setattr(Accelerator, "backward", lambda self, loss: backward(self, loss / next(calls)))


def drops_every_other_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, calls = Accelerator.backward, iter(range(100))
    monkeypatch.setattr(Accelerator, "backward", lambda self, loss: next(calls) % 2 or backward(self, loss))


@pytest.mark.parametrize("change", [divides_by_position, drops_every_other_loss])
def test_another_way_of_accumulating_is_an_error_that_names_the_version(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(rate=1.0)
    before = torch.nn.utils.parameters_to_vector(loop.net.parameters()).detach().clone()
    change(monkeypatch)
    with pytest.raises(UpdateError, match=rf"^accelerate {__version__}: .* this version of accelerate"):
        loop.run()
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(loop.net.parameters()).detach())


@pytest.mark.parametrize("how", ["FSDP", "DEEPSPEED"])
def test_processes_that_shard_are_refused(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Loop(exactly=False).accelerator
    monkeypatch.setattr(accelerator.state, "distributed_type", DistributedType[how])
    with pytest.raises(OptionError, match=rf"uses {how}, but only a single process and DDP"):
        exact(accelerator)


def test_parallelism_within_a_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Loop(exactly=False).accelerator
    parallel = ParallelismConfig(tp_size=2)
    monkeypatch.setattr(type(accelerator), "parallelism_config", parallel)
    with pytest.raises(OptionError, match="uses tp_size=2"):
        exact(accelerator)


def test_a_loop_that_is_watched_and_exact_has_no_findings() -> None:
    for exactly, codes in ((False, ["GG103"]), (True, [])):
        loop = Loop(exactly=exactly, rate=1e-3)
        with gg.watch() as report:
            loop.run(epochs=3)
        assert [finding.code for finding in report.findings] == codes
        for finding in report.findings:
            assert "gradgate.integrations.accelerate.exact(accelerator)" in finding.advice
