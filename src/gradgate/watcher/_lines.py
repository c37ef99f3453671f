"""The user's line in every node of a graph.

torch's anomaly mode stores a stack in each node that is made, under "traceback_". It asks
``torch.fx.traceback.format_stack`` for it, which takes some 100 us. Here it is given a function that takes two,
and the mode is on only while a closer look is taken; NaN are not checked, nothing is computed otherwise.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.fx.traceback

from gradgate.events import Site
from gradgate.watcher._patches import Patches
from gradgate.watcher._sites import here, kind_of


class _Stack(list[str]):
    """What torch takes for a formatted stack: lines, to be joined if it prints them."""

    site: Site = ()


_stacks: dict[Site, _Stack] = {}


def _stack_of(site: Site) -> _Stack:
    stack = _stacks.get(site)
    if stack is None:
        stack = _stacks[site] = _Stack(
            f'  File "{frame.file}", line {frame.line}, in {frame.function}\n' for frame in reversed(site)
        )
        stack.site = site
    return stack


class Lines:
    """Switches the storing of lines on and off."""

    def __init__(self) -> None:
        self._on = False
        self._theirs = False

    def install(self, patches: Patches) -> None:
        """Put the quick function in the place of torch's."""
        patches.wrap(torch.fx.traceback, "format_stack", _format_stack)

    def on(self) -> None:
        """Store lines from now on. Where the user has anomaly mode on already, it stays theirs."""
        if not self._on and not torch.is_anomaly_enabled():
            torch.set_anomaly_enabled(True, False)
            self._on = True

    def off(self) -> None:
        """Store none any more."""
        if self._on:
            self._on = False
            if not torch.is_anomaly_check_nan_enabled():  # else the user has switched it on since
                torch.set_anomaly_enabled(False)


def _format_stack(original: Any) -> Any:
    caller = sys._getframe(2)
    if kind_of(caller.f_code.co_filename) == "tracer" or torch.compiler.is_compiling():
        return original()
    return _stack_of(here(caller))


def line_of(node: Any) -> Site:
    """Return where a node of a graph was made, as far as that was stored."""
    stack = node.metadata.get("traceback_")
    return stack.site if isinstance(stack, _Stack) else ()
