"""Every object of a public class says in one line what it is."""

import inspect
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gradgate as gg
from gradgate.accumulation import Caller, LossChecks, LossSum, Stamps
from gradgate.checker.reports import Entry, Held, Report, Selection
from gradgate.checker.rules import rules
from gradgate.events import Log
from gradgate.planning import peak_memory
from gradgate.testing import Verdict
from tests.checker.reports.made import SUMMARY, finding

PACKAGES = [
    import_module(name)
    for name in (
        *("gradgate", "gradgate.accumulation", "gradgate.gates", "gradgate.planning", "gradgate.losses"),
        *("gradgate.testing", "gradgate.checker", "gradgate.checker.reports", "gradgate.checker.rules"),
    )
]


def trained() -> tuple[nn.Linear, SGD]:
    model = nn.Linear(4, 1)
    return model, SGD(model.parameters(), lr=0.1)


def accumulator() -> gg.Accumulator:
    model, optimizer = trained()
    return gg.Accumulator(optimizer, model=model)


def an_update() -> gg.Update:
    model, optimizer = trained()
    with gg.Accumulator(optimizer, model=model).update() as update:
        for size in update.micro_batches([1, 2, 3, 1_000]):
            update.backward(model(torch.zeros(size, 4)).mean() * 0 + 1.02, count=size)
    return update


def plan() -> gg.Plan:
    model = nn.Linear(8, 1)
    return gg.plan(lambda x: model(x).mean(), torch.ones(100, 8), budget_bytes=255)


def flow() -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    return gg.flow(model(torch.ones(1, 4)).sum(), model)


def a_finished_watch() -> Any:
    with gg.watch() as watching:
        model, optimizer = trained()
        for _ in range(3):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return watching


CASES: list[tuple[Callable[[], Any], str]] = [
    (accumulator, "Accumulator(SGD: 2 tensors, 5 parameters)"),
    (
        lambda: gg.Accumulator(SGD([nn.Parameter(torch.ones(1))])),
        "Accumulator(SGD: 1 tensor, 1 parameters)",
    ),
    (an_update, "Update(step 1, 4 micro-batches, 1,006 items, loss 1.02)"),
    (lambda: gg.windows([1, 2, 3], size=2), "windows(list, size=2)"),
    (lambda: next(iter(gg.windows([1, 2, 3], size=2))), "Window(1 of 2 micro-batches drawn)"),
    (lambda: gg.decay(0.5), "Decay(factor=0.5)"),
    (gg.NoiseScale, "NoiseScale(no estimate after 0 updates)"),
    (
        lambda: LossSum("fake", contributions=[(2, "mean", 0.5)] * 2),
        "LossSum('fake', 2 contributions)",
    ),
    (lambda: gg.Tally(6.0, 3), "Tally(total=6.0, count=3)"),
    (plan, "Plan(100 samples in 3 micro-batches, 255 B, estimated)"),
    (lambda: plan().split(torch.ones(100, 8)), "Split(100 samples in 3 micro-batches)"),
    (lambda: plan().split(torch.ones(100, 8))[0], "MicroBatch(34 samples, count=34)"),
    (peak_memory, "peak_memory(peak_bytes=0, live_bytes=0)"),
    (lambda: gg.frozen(nn.Linear(4, 1)), "Frozen(Linear: 2 tensors, 5 parameters)"),
    (lambda: gg.scaled(nn.Linear(4, 1), factor=0.5), "ScaledModules(Linear, factor=0.5)"),
    (lambda: gg.train_rows(nn.Embedding(8, 4), [1, 2]), "TrainedRows(2 rows of [8, 4])"),
    (flow, "Flow(Sequential: 4 of 4 tensors reached)"),
    (lambda: flow()["1.bias"], "Reach(name='1.bias', shape=(1,), paths=1, stops=())"),
    (
        lambda: gg.flow(torch.ones((), requires_grad=True) * 1, nn.Linear(1, 1))["bias"].stops[0],
        "Stop(why='not in the graph', op='', frame=None)",
    ),
    (
        lambda: Verdict(2e-16, 1.0, 0.0, 1e-10, 1),
        "Verdict(exact: error 2.0e-16, 1e-10 allowed, steps=1)",
    ),
    (gg.watch, "Watching(not started)"),
    (a_finished_watch, "Watching(finished, Report(a loop: no findings after 3 steps))"),
    (
        lambda: Report("train.py", (finding("train.py"),), SUMMARY),
        "Report(train.py: 1 error after 30 steps)",
    ),
    (lambda: finding("train.py"), "Finding(GG101 accumulation-window: error at train.py:6)"),
    (lambda: rules()[0], f"Rule(GG101 {rules()[0].name}: {rules()[0].severity})"),
    (lambda: SUMMARY, "Summary(30 steps, 120 backward calls, finished after 12.3 s)"),
    (
        lambda: Held("optimizer", "AdamW", 62, 1_204_233),
        "Held(name='optimizer', kind='AdamW', parameters=62, elements=1204233)",
    ),
    (lambda: Selection(select=("GG1",)), "Selection(select=('GG1',), ignore=())"),
    (
        lambda: Log("train.py", steps=30, backwards=120, rank=1, world=2),
        "Log(train.py, rank 1 of 2: 30 steps, 120 backward calls, 0 events)",
    ),
]


@pytest.mark.parametrize(("make", "text"), CASES, ids=[text.partition("(")[0] for _, text in CASES])
def test_a_line_says_what_an_object_is(make: Callable[[], Any], text: str) -> None:
    assert repr(make()) == text


def test_an_open_watch_says_so() -> None:
    with gg.watch() as watching:
        assert repr(watching) == "Watching(running)"


def exported(package: ModuleType) -> set[type]:
    return {value for name in package.__all__ if inspect.isclass(value := getattr(package, name))}


# Exported for integrations and the command, which never hand them to a user.
INNER = {Caller, Entry, LossChecks, Stamps}


def test_no_public_class_is_left_out() -> None:
    shown = INNER | {type(make()) for make, _ in CASES}
    left = {kind for package in PACKAGES for kind in exported(package)} - shown
    assert left == set()
