"""Warnings that torch gives to whoever calls it: while a run is watched that is the watcher, and not the user."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any

from gradgate.call_sites import kind_of
from gradgate.checker.recording._patches import Patches


def install(patches: Patches) -> None:
    """Show warnings where they would be shown if nobody stood between the user and torch."""
    patches.wrap(warnings, "showwarning", _hand_on)


def _hand_on(original: Any, message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
    frame = _behind(filename, lineno) if kind_of(filename) == "ours" else None
    if frame is None:
        original(message, category, filename, lineno, *rest)
        return
    # Python shows a warning once for each place: ours stands for many places.
    for name in [name for name in sys.modules if name.startswith("gradgate.checker.recording.")]:
        vars(sys.modules[name]).pop("__warningregistry__", None)
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _behind(filename: str, lineno: int) -> FrameType | None:
    """Return the frame that called the one of ours which is warned."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (filename, lineno):
        frame = frame.f_back
    while frame is not None and kind_of(frame.f_code.co_filename) == "ours":
        frame = frame.f_back
    return frame
