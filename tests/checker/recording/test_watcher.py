"""The watcher leaves no trace: torch, the user's objects and what they compute are as without it."""

import contextlib
import copy
import gc
import io
import pickle
import sys
import sysconfig
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradgate as gg
from gradgate.checker.recording import StopRun, Watcher

# private: the buffer's bound: the first events and the last are kept, the gap is counted
from gradgate.checker.recording._registry import EventBuffer
from gradgate.checker.rules import check
from gradgate.events import Backward, Clipped, Event, Gap, Stepped

PATCHED = [
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (nn.Module, "zero_grad"),
    (nn.Module, "train"),
    (nn.Module, "__init__"),
    (nn.Parameter, "__new__"),
    (nn.utils, "clip_grad_norm_"),
    (torch.Tensor, "detach"),
    (torch.Tensor, "data"),
    (torch.Tensor, "add_"),
    (torch.amp.GradScaler, "step"),
    (torch.optim.lr_scheduler.LRScheduler, "step"),
    (torch.utils.data.DataLoader, "__iter__"),
]


def train(steps: int = 3, model: nn.Module | None = None) -> nn.Module:
    model = model or nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        optimizer.step()
    return model


def test_torch_is_given_back_as_it_was() -> None:
    before = [vars(owner).get(name) for owner, name in PATCHED]
    watcher = Watcher()
    watcher.start()
    assert [vars(owner).get(name) for owner, name in PATCHED] != before
    watcher.stop()
    assert [vars(owner).get(name) for owner, name in PATCHED] == before
    assert not torch.is_anomaly_enabled()


def test_nothing_that_the_user_made_is_kept_alive(watcher: Watcher) -> None:
    model = train()
    optimizer = torch.optim.Adam(model.parameters())
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()
    refs = [weakref.ref(one) for one in (model, optimizer, loss, model[0].weight)]
    del model, optimizer, loss
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_nothing_of_the_watcher_is_in_what_is_saved_or_copied(watcher: Watcher) -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.unused(x)  # a suspect: it runs and gets no gradient
            return self.used(x)

    model = train(6, Idle())
    assert copy.deepcopy(model).unused.weight.equal(model.unused.weight)
    saved = io.BytesIO()
    torch.save(model.used, saved)
    assert b"gradgate" not in saved.getvalue()
    assert b"gradgate" not in pickle.dumps(model.unused)


def test_generators_reach_torch_as_they_were_given(watcher: Watcher) -> None:
    model = train()
    loss = model(torch.randn(2, 4)).sum()
    gradients = torch.autograd.grad(loss, (p for p in model.parameters()), retain_graph=True)
    assert len(gradients) == 4
    loss.backward()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0
    used_up = iter(p for p in model.parameters())
    assert len(list(used_up)) == 4
    with pytest.warns(UserWarning, match="no gradients will be clipped|empty generator"):
        nn.utils.clip_grad_norm_(used_up, 1.0)


def test_a_failure_of_the_watcher_is_noted_and_does_not_stop_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = Watcher()
    watcher.start()
    try:
        monkeypatch.setattr(watcher._parts.backwards, "_before", lambda *args, **kwargs: 1 / 0)
        train()
    finally:
        watcher.stop()
    (failure, *_) = watcher.log().failures
    assert "ZeroDivisionError" in failure


@pytest.mark.parametrize(("seconds", "steps"), [(1e-9, 1), (1e9, 10)])
def test_a_run_is_stopped_at_the_step_that_ends_after_the_time_that_was_asked_for(
    seconds: float, steps: int
) -> None:
    watcher = Watcher(max_seconds=seconds)
    watcher.start()
    try:
        with contextlib.suppress(StopRun):
            train(10)
    finally:
        watcher.stop()
    assert (watcher.steps, watcher.stop_raised) == (steps, steps < 10)


def test_a_run_is_stopped_after_the_steps_that_were_asked_for() -> None:
    watcher = Watcher(max_steps=2)
    swallowed: list[int] = []
    watcher.stop_with(StopRun, lambda times: swallowed.append(watcher.steps) if times > 3 else None)
    watcher.start()
    try:
        with pytest.raises(StopRun):
            train(10)
        for _ in range(4):
            with pytest.raises(StopRun):
                train(1)
    finally:
        watcher.stop("stopped")
    assert watcher.steps == 2
    assert swallowed


def test_what_was_seen_survives_being_saved(watcher: Watcher) -> None:
    train()
    watcher.stop()
    log = watcher.log()
    assert pickle.loads(pickle.dumps(log)) == log
    assert [type(event) for event in log.events if isinstance(event, (Backward, Stepped))] == [
        Backward,
        Stepped,
    ] * 3


def test_the_terms_of_a_loss_are_read_from_its_graph(watcher: Watcher) -> None:
    model = nn.Linear(4, 3)
    target = torch.tensor([0, 1, -100, 2, -100])
    loss = F.cross_entropy(model(torch.randn(5, 4)), target) * 0.5 + 3 * model(torch.randn(6, 4)).mean()
    (loss / 4).backward()
    (event,) = [event for event in watcher.log().events if isinstance(event, Backward)]
    terms = sorted((term.kind, term.items, round(term.weight, 6)) for term in event.terms)
    assert terms == [("mean", 3.0, 0.125), ("mean", 18.0, 0.75)]
    assert len({term.site[0].line for term in event.terms}) == 1


def test_an_event_buffer_keeps_the_first_events_and_the_last() -> None:
    buffer = EventBuffer(head=3, tail=2)
    for _ in range(9):
        buffer.add(Event(()))
    kept = buffer.events()
    assert [type(event) for event in kept] == [Event, Event, Event, Gap, Event, Event]
    assert kept[3].count == 4


def test_the_backward_calls_of_an_accumulator_are_seen_at_the_user_s_line(watcher: Watcher) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1))
    for sizes in ((8, 8, 3), (8, 8, 8)):
        with accumulator.update() as update:
            for size in update.micro_batches(sizes):
                loss = F.cross_entropy(model(torch.randn(size, 4)), torch.randint(2, (size,)))
                update.backward(loss, count=size)
    log = watcher.log()
    calls = [event for event in log.events if isinstance(event, Backward)]
    assert [len(call.reached) for call in calls] == [4] * 6
    assert {(call.site[0].file, call.managed, call.terms) for call in calls} == {(__file__, True, ())}
    assert [one for one in check(log, strict=True) if one.severity != "info"] == []


class WithSpare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_a_parameter_that_an_accumulator_never_reaches_is_found(watcher: Watcher) -> None:
    model = WithSpare()
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        with accumulator.update() as update:
            update.backward(F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))), count=8)
    found = check(watcher.log(), strict=True)
    assert [(one.category, len(one.about)) for one in found] == [("unreached-parameter", 2)]


def test_a_variable_that_is_assigned_again_names_the_second_optimizer_too(watcher: Watcher) -> None:
    model = nn.Linear(4, 1)
    for lr in (0.1, 0.01):
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(6):
            opt.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            opt.step()
    assert watcher.log().optimizers == {0: "opt", 1: "opt"}


def test_a_clip_says_its_limit_and_the_norm_that_it_met(watcher: Watcher) -> None:
    weight = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    weight.square().sum().backward()
    nn.utils.clip_grad_norm_(iter([weight]), 5.0)
    nn.utils.clip_grad_value_([weight, weight], clip_value=1.0)
    log = watcher.log()
    clips = [event for event in log.events if isinstance(event, Clipped)]
    assert [(clip.limit, clip.given) for clip in clips] == [(5.0, 1), (1.0, 2)]
    assert [clip.norm for clip in clips] == [10.0, None]
    assert [parameter.dtype for parameter in log.parameters.values()] == ["float64"]


def test_a_library_that_imports_a_watched_function_between_two_watches_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a library's module imports is remembered from one watch to the next, as long as it has no new names."""
    module: Any = types.ModuleType("a_library")
    module.__file__ = f"{sysconfig.get_path('purelib')}/a_library.py"
    monkeypatch.setitem(sys.modules, "a_library", module)
    for imported in (False, False, True):
        if imported:
            module.clip = torch.nn.utils.clip_grad_norm_
        watcher = Watcher(strict=True)
        watcher.start()
        weight = nn.Parameter(torch.ones(2))
        weight.sum().backward()
        if imported:
            module.clip([weight], 1.0)
        watcher.stop()
        assert any(isinstance(event, Clipped) for event in watcher.log().events) == imported
    assert module.clip is torch.nn.utils.clip_grad_norm_
