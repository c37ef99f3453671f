"""What a script can see, read, count or keep is what it would be with nobody watching."""

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_by_another_name
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradgate as gg
from gradgate.checker.recording import StopRun, Watcher
from gradgate.checker.rules import check
from gradgate.events import Backward, Clipped, Ended, Gap


def steps(count: int = 3, **options: object) -> list[nn.Parameter]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).square().mean()
        loss.backward()
        loss.item()
        optimizer.step()
    return list(model.parameters())


class _FunctionsDraw(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        torch.rand(1)
        return function(*args, **(kwargs or {}))


class _OperationsDraw(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        torch.rand(1)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_FunctionsDraw, _OperationsDraw])
def test_a_mode_of_the_users_own_sees_only_what_the_script_does(mode) -> None:
    def run() -> tuple[list[nn.Parameter], torch.Tensor]:
        with mode():
            return steps(), torch.get_rng_state()

    (plain, state) = run()
    with gg.watch() as report:
        (watched, watched_state) = run()
    assert report.summary.steps == 3
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert torch.equal(state, watched_state)


def test_a_tensor_class_of_the_users_own_sees_only_what_the_script_does() -> None:
    calls: list[str] = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(getattr(function, "__name__", str(function)))
            return super().__torch_function__(function, types, args, kwargs or {})

    def run() -> list[str]:
        calls.clear()
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            data = torch.ones(3).as_subclass(Counted)
            loss = (data * weight).sum()
            loss.backward()
            loss.detach()
            optimizer.step()
        return list(calls)

    plain = run()
    with gg.watch():
        assert run() == plain


def test_what_a_function_keeps_of_its_locals_stays_as_it_was(watcher: Watcher) -> None:
    def train() -> set[str]:
        epochs, rate = 1, 0.1
        kept = locals()
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=rate)
        for _ in range(epochs):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        return set(kept)

    assert train() == {"epochs", "rate"}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_is_the_users_own() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert not torch.is_anomaly_enabled()
    with gg.watch():
        assert not torch.is_anomaly_enabled()
        with torch.autograd.detect_anomaly(check_nan=False):
            assert torch.is_anomaly_enabled()
            torch.autograd.grad(weight.sum(), [weight])
            weight.sum().backward()
            assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_enabled()
        torch.autograd.set_detect_anomaly(True)
    assert torch.is_anomaly_enabled()
    assert torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(False)


def test_a_failing_grad_says_no_more_than_unwatched(watcher: Watcher) -> None:
    weight = nn.Parameter(torch.ones(2))
    loss = weight.exp().sum()
    torch.autograd.grad(loss, [weight])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, [weight])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_of_the_users_own_prints_the_whole_stack(watcher: Watcher) -> None:
    weight = nn.Parameter(torch.zeros(2))
    with torch.autograd.detect_anomaly(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = (weight.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="nan"):
            loss.backward()
    (said,) = (str(one.message) for one in caught if "forward call" in str(one.message))
    assert "loss = (weight.sqrt() * 0).sum()" in said
    assert "test_bystander" in said
    assert "gradgate/watcher" not in said


def test_a_function_that_was_imported_by_name_before_is_watched_and_given_back() -> None:
    original = clip_by_another_name
    weight = nn.Parameter(torch.ones(2))
    watcher = Watcher(strict=True)
    watcher.start()
    weight.sum().backward()
    clip_by_another_name([weight], 1.0)
    watcher.stop()
    assert any(isinstance(event, Clipped) for event in watcher.log().events)
    assert clip_by_another_name is original


@pytest.mark.parametrize("first_to_stop", [0, 1])
def test_watches_that_overlap_leave_torch_as_it_was(first_to_stop: int) -> None:
    names = ("detach", "add_", "item", "data")
    before = [vars(torch.Tensor).get(name) for name in names] + [torch.autograd.backward]
    watchers = [Watcher(strict=True), Watcher(strict=True)]
    for one in watchers:
        one.start()
    steps()
    watchers.pop(first_to_stop).stop()
    steps(2)
    watchers[0].stop()
    assert watchers[0].log().steps == 5
    assert [vars(torch.Tensor).get(name) for name in names] + [torch.autograd.backward] == before


def test_two_watchers_and_many_threads_do_not_wait_for_each_other() -> None:
    watchers = [Watcher(strict=True), Watcher(strict=True)]
    for one in watchers:
        one.start()
    threads = [threading.Thread(target=steps, args=(20,), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for one in watchers:
        one.stop()
        assert one.log().steps == 80
        assert isinstance(one.log().events[-1], Ended)


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_that_raises_keeps_nothing_alive(watcher: Watcher, closure: bool) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if closure is not None:
                closure()
            raise ValueError("no")

    def fail() -> list[weakref.ref[object]]:
        weight = nn.Parameter(torch.ones(2))
        optimizer = Failing([weight], lr=0.1)
        weight.sum().backward()
        with pytest.raises(ValueError, match="no"):
            optimizer.step((lambda: 0.0) if closure else None)
        return [weakref.ref(weight), weakref.ref(optimizer)]

    refs = fail()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    assert not watcher._recorder.thread.closures
    assert not watcher._recorder.quiet


def test_an_iterable_data_set_is_not_asked_for_its_length(watcher: Watcher) -> None:
    class More(torch.utils.data.IterableDataset[int]):
        def __iter__(self):
            return iter(range(5))

        def __len__(self) -> int:
            return 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(torch.utils.data.DataLoader(More(), batch_size=None))) == 5


def test_a_warning_is_shown_once_for_each_line_of_the_users(watcher: Watcher) -> None:
    shown: list[tuple[str, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, category, filename, lineno, *_: shown.append(
            (filename, lineno)
        )
        again = Watcher(strict=True)
        again.start()
        optimizers = [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2)]
        schedulers = [torch.optim.lr_scheduler.StepLR(one, 1) for one in optimizers]
        for _ in range(2):
            schedulers[0].step()
        schedulers[1].step()
        again.stop()
    lines = [line for file, line in shown if file == __file__]
    assert len(lines) == len(shown) == len(set(lines)) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_is_said_to_be_unseen_and_not_called_missing() -> None:
    weight = nn.Parameter(torch.ones(2))
    with gg.watch() as report:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(3):
            optimizer.zero_grad()
            weight.sum().backward()
            step()
    assert weight.tolist() == pytest.approx([0.7, 0.7])
    assert not report.findings
    assert "TORCH_COMPILE_DISABLE=1" in str(report)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_question_amid_the_run_does_not_settle_what_is_judged() -> None:
    model = nn.Linear(2, 1)
    compiled = torch.compile(model, backend="eager")
    with gg.watch() as report:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled(torch.ones(1, 2)).sum().backward()
        assert report.summary.notes
        optimizer.step()
    assert not report.summary.notes


def test_memory_stays_bounded_where_models_are_made_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    # private: a limit that a short test reaches
    monkeypatch.setattr("gradgate.checker.recording._recorder._MOST_PARAMETERS", 40)
    with gg.watch() as report:
        for _ in range(100):
            steps(1)
    assert report.summary.steps == 100
    assert len(report._watcher._recorder.parameters.records) < 50
    assert "more than 40 parameters by step 11" in str(report)
    watcher = Watcher(max_steps=50, strict=True)
    watcher.start()
    with pytest.raises(StopRun):
        [steps(1) for _ in range(100)]
    watcher.stop()
    assert watcher.steps == 50


@pytest.mark.parametrize("measured", [False, True])
def test_planning_is_no_training(watcher: Watcher, measured: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 4)

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean() * (x.sum().item() if measured else 1.0)

    plan = gg.plan(loss_fn, batch, budget_bytes="1MiB", optimizer=optimizer)
    assert plan.estimated != measured
    log = watcher.log()
    assert (log.steps, log.backwards, log.failures) == (0, 0, ())
    assert [type(event).__name__ for event in log.events] == ["OptimizerMade"]


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.inner(x)) * self.factor


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_model_is_turned_into_a_script_while_watched() -> None:
    front, frozen, spare = nn.Linear(3, 4), _Scaled().requires_grad_(False), nn.Linear(3, 4)
    optimizer = torch.optim.SGD([*front.parameters(), *spare.parameters()], lr=0.1)
    x = torch.randn(5, 3)
    with gg.watch():
        for _ in range(4):
            optimizer.zero_grad()
            frozen(front(x)).square().mean().backward()
            optimizer.step()
        scripted = torch.jit.script(frozen)
        graph = torch.fx.symbolic_trace(frozen).graph
    assert torch.equal(scripted(front(x)), frozen(front(x)))
    assert [node.name for node in graph.nodes] == ["x", "inner", "relu", "factor", "mul", "output"]


def test_a_long_loop_without_an_optimizer_is_looked_at_for_a_while(watcher: Watcher) -> None:
    weight = torch.ones(2, requires_grad=True)
    for _ in range(600):
        weight.grad = None
        weight.square().sum().backward()
        weight.data -= 0.01 * weight.grad
    assert watcher.backwards == 600
    assert not watcher._recorder.looking
    events = watcher.log().events
    assert sum(isinstance(event, Backward) for event in events) == 480
    assert isinstance(events[-1], Gap)
    optimizer = torch.optim.SGD([weight], lr=0.01)  # something new is looked at again
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
    assert [type(event).__name__ for event in watcher.log().events[-2:]] == ["Backward", "Stepped"]
    assert check(watcher.log(), strict=True) == []
