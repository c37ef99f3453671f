"""Show an exception as python shows it: without a frame of those who only stood by."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType

_PACKAGE = Path(__file__).resolve().parents[2]
_BYSTANDERS = tuple(str(_PACKAGE / package) + os.sep for package in ("checker", "cli"))


def shown_as_python_does(error: BaseException) -> None:
    """Hand an exception that nobody caught to ``sys.excepthook``, which the script may have replaced."""
    forget_bystanders(error)
    kind, trace = type(error), error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    try:
        sys.excepthook(kind, error, trace)
    except Exception:  # noqa: BLE001  (whatever a replaced hook raises, the error itself has to be seen)
        traceback.print_exception(kind, error, trace)


def forget_bystanders(error: BaseException) -> None:
    """Take our frames out of the traceback of an exception, and of those that led to it."""
    for each in led_to(error):
        each.__traceback__ = _without_bystanders(each.__traceback__)


def led_to(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, those that it was raised from or amid, and those that it is a group of."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _without_bystanders(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_BYSTANDERS):
            kept.append(trace)
        trace = trace.tb_next
    if not kept:
        return None
    kept[-1].tb_next = None
    for outer, inner in pairwise(kept):
        outer.tb_next = inner
    return kept[0]
