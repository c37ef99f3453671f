"""What loops do between two windows. Most of it may change no update; what does, is done to the truth alike."""

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import gradgate as gg
from gradgate.errors import CountError, GradientError, NonfiniteError
from tests.laws.fuzz.loop import WRAPPERS, Loop
from tests.laws.fuzz.trainer import logits_of
from tests.laws.fuzz.ways import StopError, Window, planned
from tests.laws.fuzz.whole import Whole


@dataclass(frozen=True)
class Act:
    """What one thing does to the loop, and to the truth; ``window`` is the one that comes next."""

    loop: Callable[[Loop, Window], object]
    whole: Callable[[Whole], object] = lambda whole: None


@contextlib.contextmanager
def refused(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors:
        return
    raise AssertionError(f"no {errors[0].__name__} was raised")


def _stop(loop: Loop, window: Window, how: str) -> None:
    """Leave a window by an exception, which steps nothing."""
    with contextlib.suppress(StopError), loop.accumulator.update() as update:
        for number, rows in enumerate(update.micro_batches([*window, [0], [0]])):
            if number or how == "at once":
                raise StopError
            if how == "in forward":
                logits_of(loop.called, loop.fields_of(rows))
                raise StopError
            loop.add_losses(update, rows)
    left = [p.grad for p in loop.owned()]
    assert loop.scenario.clear != "none" or left == [None] * len(left)


def _poison(loop: Loop, window: Window) -> None:
    """A window whose gradient is not finite."""
    rows = [row for part in window for row in part] or [0]
    fields = loop.fields_of(rows)
    step = contextlib.nullcontext() if loop.scenario.nonfinite == "skip" else refused(NonfiniteError)
    with step, loop.accumulator.update() as update:
        logits = logits_of(loop.called, fields)
        update.backward(logits.sum() * float("inf"), count=len(rows), name="loss 0")


def _leave_a_gradient(loop: Loop, window: Window) -> None:
    """A gradient from elsewhere is refused, and stays where it is."""
    parameter = loop.owned()[0]
    before = parameter.grad
    foreign = torch.ones_like(parameter, dtype=parameter.grad_dtype)
    parameter.grad = foreign
    with refused(GradientError), loop.accumulator.update():
        pass
    assert parameter.grad is foreign
    assert bool((foreign == 1).all())
    parameter.grad = before


def _nothing_in_it(loop: Loop, window: Window) -> None:
    with refused(CountError), loop.accumulator.update():
        pass


def _change_inside(loop: Loop, window: Window) -> None:
    """``zero_grad`` in the block: the sum is lost, and nothing may be stepped."""
    lost = False
    with (
        contextlib.suppress(StopError),
        refused(GradientError, StopError),
        loop.accumulator.update() as update,
    ):
        for rows in update.micro_batches([*window, [0], [0]]):
            loop.add_losses(update, rows)
            lost |= any(p.grad is not None for p in loop.net.parameters())
            loop.clear()
        if not lost:  # the sum of the last loss is empty, and the others are set aside
            raise StopError


def _own_backward(loop: Loop, window: Window) -> None:
    logits_of(loop.called, loop.fields_of([0, 1])).sum().backward()
    loop.clear()
    for parameter in loop.net.parameters():
        parameter.grad = None


def _compile(loop: Loop, window: Window) -> None:
    loop.called = torch.compile(loop.net, backend="eager")
    if loop.accumulator.model is not None:
        loop.accumulator.model = loop.called


def _wrap_again(loop: Loop, window: Window) -> None:
    loop.called = WRAPPERS[loop.scenario.wrapper](loop.net)
    loop.accumulator.model = loop.called


def _average(loop: Loop, window: Window) -> None:
    if "fsdp" not in loop.scenario.wrapper:
        torch.optim.swa_utils.AveragedModel(loop.net).update_parameters(loop.net)


def _save(loop: Loop, window: Window) -> None:
    loop.load(loop.save())


def _round_trip(loop: Loop, window: Window) -> None:
    for part in (*loop.optimizers, loop.accumulator):
        part.load_state_dict(copy.deepcopy(part.state_dict()))  # type: ignore[attr-defined]


def _collect(loop: Loop, window: Window) -> None:
    gc.collect()
    gc.freeze()


def _open_and_discard(loop: Loop, window: Window) -> None:
    loop.accumulator.update().__enter__()
    loop.accumulator.discard()


def _freeze_for_a_while(loop: Loop, window: Window) -> None:
    with gg.frozen(loop.net.body):
        if "fsdp" not in loop.scenario.wrapper:  # which cannot be copied
            copy.deepcopy(loop.net)
        loop.evaluate(train=True, grad=True)


def _changed(name: str, *args: Any) -> Act:
    return Act(lambda loop, _: getattr(loop, name)(*args), lambda whole: getattr(whole, name)(*args))


ACTS: dict[str, Act] = {
    "nothing": Act(lambda loop, _: None),
    "evaluate": Act(lambda loop, _: loop.evaluate(train=False, grad=False)),
    "evaluate in train mode": Act(lambda loop, _: loop.evaluate(train=True, grad=False)),
    "evaluate with grad": Act(lambda loop, _: loop.evaluate(train=False, grad=True)),
    "forward": Act(lambda loop, _: loop.evaluate(train=True, grad=True).detach()),
    "stop": Act(lambda loop, window: _stop(loop, window, "after a backward")),
    "stop at once": Act(lambda loop, window: _stop(loop, window, "at once")),
    "stop in forward": Act(lambda loop, window: _stop(loop, window, "in forward")),
    "change the rate": _changed("change_rate"),
    "freeze": _changed("train_body", False),
    "unfreeze": _changed("train_body", True),
    "add the head": _changed("add_head"),
    "zero_grad": _changed("clear"),
    "own backward": Act(_own_backward, lambda whole: whole.clear()),
    "save and load": Act(_save),
    "round trip": Act(_round_trip),
    "copy": Act(lambda loop, _: copy.deepcopy(loop.net)),
    "average": Act(_average),
    "compile": Act(_compile),
    "wrap again": Act(_wrap_again),
    "collect": Act(_collect),
    "discard": Act(_open_and_discard),
    "freeze for a while": Act(_freeze_for_a_while),
    "plan": Act(planned),
    "poison": Act(_poison),
    "leave a gradient": Act(_leave_a_gradient),
    "nothing in it": Act(_nothing_in_it),
    "change inside": Act(_change_inside),
}
# What moves counters of the model by forward passes that no update is made of.
MOVING_STATE = ("stop", "stop in forward", "own backward", "poison", "change inside")
IN_ONE_PROCESS = tuple(name for name in ACTS if name != "wrap again")
OVER_RANKS = (
    *(
        "nothing",
        "evaluate",
        "evaluate in train mode",
        "evaluate with grad",
        "forward",
        "stop",
        "stop at once",
    ),
    *(
        "stop in forward",
        "change the rate",
        "zero_grad",
        "average",
        "collect",
        "round trip",
        "freeze for a while",
    ),
)
WITH_DDP = (
    *OVER_RANKS,
    "wrap again",
    "freeze",
    "unfreeze",
    "add the head",
    "own backward",
    "copy",
    "save and load",
)
