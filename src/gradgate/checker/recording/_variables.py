"""The variables of running frames, read without a trace."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

# A function that uses one of these may hold the very dict that reading its locals would fill again.
_TELLING = frozenset(("locals", "vars", "eval", "exec", "f_locals"))
# pytest rewrites each assert of a test so that its message asks for locals(), which happens when it has failed.
_REWRITTEN = "@py_builtins"
_OURS = 3  # references to that dict: the frame's, ours, and the one that counting takes
_OPTIMIZED = 1  # CO_OPTIMIZED: a function's code, and no module's or class body's


def variables_of(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a frame, and of the objects of the user's own classes in it: "self.total"."""
    pairs = _locals_of(frame)
    yield from pairs
    for name, value in pairs:
        fields = getattr(value, "__dict__", None)
        if isinstance(fields, dict) and not isinstance(value, (type, types.ModuleType, types.FunctionType)):
            for inner, held in list(fields.items()):
                yield f"{name}.{inner}", held


def _locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a frame.

    Up to Python 3.12 reading a function's locals fills a dict that belongs to the frame, and that ``locals()``
    returns. It would keep alive what the function lets go of, so it is emptied again. Where the function may use
    that dict itself, it is left alone: its variables go without names.
    """
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & _OPTIMIZED:
        return list(frame.f_locals.items())
    used = frame.f_code.co_names
    if not _TELLING.isdisjoint(used) and _REWRITTEN not in used:
        return []
    names = frame.f_locals
    pairs = list(names.items())
    if sys.getrefcount(names) <= _OURS:
        names.clear()
    return pairs
