"""Replace torch attributes and restore them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from gradgate.call_sites import kind_of
from gradgate.checker.recording._user_objects import fields_of, is_a
from gradgate.events import Doing
from gradgate.torch_compat import dispatch_modes

Around: TypeAlias = Generator[None, Any, None]
"""A generator that runs up to its ``yield`` before a call, and receives the call's result from the ``yield``."""


_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120  (the path as code objects spell it)
_MISSING = object()
_OWN = ("torch.", "gradgate.")  # modules that must go on calling the original functions
# name of a library's module that imported no watched function -> its number of attributes at that time
_without: dict[str, int] = {}
# id of a replacement that could not be undone -> the replacement and the attribute below it
_beneath: dict[int, tuple[Any, Any]] = {}


@dataclass(frozen=True)
class Patch:
    """A torch function or method, and the functions that watch its calls.

    ``watch`` gets the arguments of each call. A ``watch`` with a ``yield`` pauses there during the call, and
    receives the call's result. If the call raises, only the ``finally`` blocks of ``watch`` run.
    """

    owner: Any  # a class or a module
    name: str
    watch: Callable[..., Around | None]
    when: Callable[..., object] | None = None  # a quick test whether a call is worth watching
    by_user: bool = False  # ignore the calls that torch or gradgate makes
    writes: bool = False  # ignore writes and clearing during the call: torch does both, not the user
    span: Doing | None = None  # the activity that the call's time belongs to
    ends_run: bool = False  # StopRun may be raised here
    iterables: bool = False  # arguments may be generators, which `watch` must not exhaust


class Patches:
    """Replaced attributes. :meth:`undo` restores them in reverse order.

    If a class inherited the attribute, ``undo`` deletes the replacement, so that the class inherits again.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._functions: dict[int, tuple[Any, Any]] = {}  # id of a module's function -> function, replacement

    def on_undo(self, act: Callable[[], Any]) -> None:
        """Call ``act`` when :meth:`undo` runs."""
        self._stack.callback(act)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name``. Remember the old attribute, unless it was inherited."""
        old = vars(owner).get(name, _MISSING)
        self._stack.callback(_put_back, owner, name, old, new)
        setattr(owner, name, new)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a function by a wrapper that calls ``around(original, *arguments)``."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        self.put(owner, name, original, wrapper)

    def put(self, owner: Any, name: str, original: Any, wrapper: Any) -> None:
        """Replace a function by a wrapper. :meth:`reach_imported` then updates the modules that imported it."""
        self.replace(owner, name, wrapper)
        if isinstance(owner, types.ModuleType):
            self._functions[id(original)] = original, wrapper

    def reach_imported(self) -> None:
        """Also replace the functions in modules that imported them by name."""
        wanted = self._functions.keys()
        for name, module in list(sys.modules.items()):
            if f"{name}.".startswith(_OWN) or not is_a(module, types.ModuleType):
                continue
            names = fields_of(module)
            if _without.get(name) == len(names):  # a later watcher needn't search it again
                continue
            # Most modules import none of the functions. This test is ten times as fast as a loop.
            if wanted.isdisjoint(map(id, list(names.values()))):
                if kind_of(str(names.get("__file__"))) == "library":
                    _without[name] = len(names)
            else:
                for known_as, value in list(names.items()):
                    if id(value) in self._functions:
                        self.replace(module, known_as, self._functions[id(value)][1])
        self._functions.clear()

    def undo(self) -> None:
        """Restore every attribute that no other code has replaced since."""
        self._stack.close()


def _put_back(owner: Any, name: str, old: Any, new: Any) -> None:
    if vars(owner).get(name) is not new:
        # Another replacement wraps ours, so removing ours would remove both. If the other one belongs to a
        # watcher, that watcher restores the attribute that was there before both.
        _beneath[id(new)] = (new, old)
        return
    while id(old) in _beneath:
        _, old = _beneath.pop(id(old))
    if old is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, old)


def tracing() -> bool:
    """Return whether the code runs only to be compiled, with fake tensors, or in a trial run of gradgate.plan."""
    if torch.compiler.is_compiling():
        return True
    return any(
        inspect.getattr_static(mode, "is_trial", False) is True
        or any(kind.__name__ == "FakeTensorMode" for kind in type(mode).__mro__)
        for mode in dispatch_modes.use()
    )


def caller() -> types.FrameType:
    """Return the frame whose call is watched: the innermost one outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def show_warnings_at_callers(patches: Patches) -> None:
    """Show torch's warnings at the user's line. By default, Python would show our wrapper's line."""
    patches.wrap(warnings, "showwarning", _show_at_caller)


def _show_at_caller(
    original: Any, message: Any, category: Any, filename: str, lineno: int, *rest: Any
) -> None:
    frame: types.FrameType | None = None
    if kind_of(filename) == "ours":
        frame = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (filename, lineno):
            frame = frame.f_back
        while frame is not None and kind_of(frame.f_code.co_filename) == "ours":
            frame = frame.f_back
    if frame is None:
        original(message, category, filename, lineno, *rest)
        return
    # Python shows each warning once per line. The user's lines all share ours, so forget what was shown.
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
