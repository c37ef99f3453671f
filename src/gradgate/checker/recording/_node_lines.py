"""Store the user's line in every node of a graph.

In anomaly mode, torch calls ``torch.fx.traceback.format_stack`` for each new node and stores the result in the
node's metadata, under "traceback_". Each call takes about 100 us. The watcher replaces ``format_stack`` by a
function that takes 2 us, and turns anomaly mode on only during a close look. The mode's NaN check stays off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from gradgate.call_sites import here, kind_of
from gradgate.checker.recording._patches import Patches, tracing
from gradgate.events import Site
from gradgate.torch_compat import stack_formatter, stored_stack


class Stack(list[str]):
    """The formatted stack in a node. A list, because torch joins the lines to print them."""

    site: Site = ()
    __hash__ = object.__hash__  # type: ignore[assignment]


_stacks: dict[Site, Stack] = {}


def _stack_of(site: Site) -> Stack:
    stack = _stacks.get(site)
    if stack is None:
        stack = _stacks[site] = Stack(
            f'  File "{frame.file}", line {frame.line}, in {frame.function}\n' for frame in reversed(site)
        )
        stack.site = site
    return stack


class Lines:
    """Turns anomaly mode on and off, unnoticed by the user.

    torch has only one switch for anomaly mode. During a watched run, the user's calls set and read a separate
    switch. ``failed`` keeps the watcher's own error and returns whether to hide it from the script.
    """

    def __init__(self, failed: Callable[[BaseException], bool]) -> None:
        self._failed = failed
        self._on = False
        self._stored = False  # whether torch stores our stacks
        self._paused = 0
        self._now = self._users = False, False  # whether anomaly mode is on, and whether it checks for NaN
        self._set: Any = torch.set_anomaly_enabled

    def install(self, patches: Patches) -> None:
        """Replace ``format_stack``, and torch's functions that set and query anomaly mode."""
        self._set = torch.set_anomaly_enabled
        self._now = self._users = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        place = stack_formatter()
        self._stored = place is not None
        if place is not None:
            patches.wrap(*place, self._format_stack)
        patches.wrap(torch, "set_anomaly_enabled", self._set_by_user)
        patches.wrap(torch, "is_anomaly_enabled", lambda _: self._users[0])
        patches.wrap(torch, "is_anomaly_check_nan_enabled", lambda _: self._users[1])

    def on(self) -> None:
        """Begin to store lines."""
        self._on = self._stored
        self._apply()

    def off(self) -> None:
        """Stop storing lines, unless the user has anomaly mode on."""
        self._on = False
        self._apply()

    def pause(self, more: int) -> None:
        """Pause with 1, resume with -1. Backward passes pause, because anomaly mode slows down every node."""
        self._paused += more
        if self._on:
            self._apply()

    def _set_by_user(self, _: Any, enabled: bool, check_nan: bool = True) -> None:
        self._users = enabled, check_nan
        self._apply()

    def _apply(self) -> None:
        enabled, check_nan = self._users
        now = enabled or (self._on and not self._paused), enabled and check_nan
        if now != self._now:
            self._now = now
            self._set(*now)

    def _format_stack(self, original: Any) -> Any:
        """Return what a new node stores.

        Threads of gloo and of TorchScript also make nodes. No Python code runs on them, so there may be no caller,
        and an exception here would end the operation that waits for the thread.
        """
        try:
            caller = sys._getframe(1).f_back
            if (caller is not None and kind_of(caller.f_code.co_filename) == "tracer") or tracing():
                return original()
            if not self._users[0]:
                return _stack_of(here(caller))
            stack = Stack(original()[:-2])  # torch may print this stack, so leave out our own two frames
            stack.site = here(caller)
            return stack
        except Exception as failure:
            if not self._failed(failure):
                raise
            return original()


def line_of(node: Any) -> Site:
    """Return the line that made a node, if the node has stored the line."""
    stack = stored_stack(node)
    return stack.site if isinstance(stack, Stack) else ()


def made_in_one_call(first: Any, second: Any) -> bool:
    """Return whether one call of one of the user's functions made both nodes."""
    (frame, *callers), (other, *other_callers) = line_of(first) or [()], line_of(second) or [()]
    return callers == other_callers and frame[::2] == other[::2]  # file and function
