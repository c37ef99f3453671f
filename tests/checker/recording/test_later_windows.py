"""After its close look the watcher does little, and still records what each window does with the gradients."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import gradgate
from gradgate.checker.recording import Watcher
from gradgate.events import Cleared, Event, Stepped, Written

OURS = str(Path(gradgate.__file__).parent)
ACTING = tuple(
    f"{OURS}{os.sep}{name}" for name in ("accumulation", "gates")
)  # hooks that other tests have left
LATER = 80  # steps, after which the close look has ended and no block of steps is looked at
PER_BACKWARD = 42  # Python calls of the watcher for a backward call: 32 to 35 on Python 3.11, once about 80
PER_STEP = 100  # the same for zero_grad() and step() together: 75 to 88 on Python 3.11, once about 200


class Loop:
    """A loop with two micro-batches to a window."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.ones(4, 3)

    def backward(self) -> None:
        for _ in range(2):
            self.model(self.x).square().mean().backward()

    def window(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()


@pytest.fixture
def loop(watcher: Watcher) -> Loop:
    loop = Loop()
    for _ in range(LATER):
        loop.window()
    assert not watcher.log().events[-1].seen  # type: ignore[attr-defined]
    return loop


def calls_in(act: Callable[[], object]) -> int:
    """Return the number of Python calls in gradgate's files, the second time: graphs from a new line are read."""
    return [counted(act) for _ in range(2)][1]


def counted(act: Callable[[], object]) -> int:
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        file = frame.f_code.co_filename
        count += event == "call" and file.startswith(OURS) and not file.startswith(ACTING)

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_a_later_window_takes_few_calls_of_the_watcher(loop: Loop) -> None:
    backward = calls_in(loop.backward) / 2
    window = calls_in(loop.window)
    assert 0 < backward <= PER_BACKWARD
    assert 0 < window - 2 * backward <= PER_STEP


def set_to_none(parameter: nn.Parameter) -> None:
    parameter.grad = None


def set_to_zero(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.zero_()


def replace(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad = parameter.grad / 2


def replace_data(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.data = parameter.grad.data / 2


@pytest.mark.parametrize(
    ("change", "kind"),
    [(set_to_none, Cleared), (set_to_zero, Written), (replace, Written), (replace_data, Written)],
)
def test_a_gradient_changed_by_hand_in_a_later_window_is_recorded(
    loop: Loop, watcher: Watcher, change: Callable[[nn.Parameter], None], kind: type[Event]
) -> None:
    before = len(watcher.log().events)
    loop.backward()
    change(loop.model.weight)
    loop.optimizer.step()
    events = watcher.log().events[before:]
    made = [event for event in events if isinstance(event, (Cleared, Written))]
    assert [type(event) for event in made] == [kind]
    assert [watcher.log().parameters[number].name for number in made[0].parameters] == ["loop.model.weight"]


def test_a_later_step_says_which_parameters_had_a_gradient(loop: Loop, watcher: Watcher) -> None:
    loop.optimizer.zero_grad()
    loop.model.weight.requires_grad_(False)
    loop.backward()
    loop.optimizer.step()
    last = watcher.log().events[-1]
    assert isinstance(last, Stepped)
    assert [watcher.log().parameters[number].shape for number in last.used] == [(2,)]
