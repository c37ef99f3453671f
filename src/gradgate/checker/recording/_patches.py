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

from gradgate.call_sites import is_installed, kind_of
from gradgate.checker.recording._user_objects import fields_of, is_a
from gradgate.events import Doing
from gradgate.torch_compat import dispatch_modes, fake_tensors_on

Around: TypeAlias = Generator[None, Any, None]
"""Runs up to its ``yield`` before a call, and is resumed with the call's result."""


_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120  (the path as code objects spell it)
_MISSING = object()
_beneath: dict[int, tuple[Any, Any]] = {}  # by replacement that could not be undone, what it replaced

# The libraries' modules that import no watched function by name, each with how many names it had, and the functions
# that were sought. A process may start many watchers: one for each test, or for each run of a notebook's cell.
_import_none: dict[str, tuple[types.ModuleType, int]] = {}
_sought: set[int] = set()


@dataclass(frozen=True)
class Patch:
    """A torch function or method, and the functions that watch its calls.

    ``watch`` gets the arguments of each call. If it is a generator function, it runs up to its ``yield`` before the
    call and is resumed with the result after it. If the call raises, only its ``finally`` blocks run.
    """

    owner: Any  # a class or a module
    name: str
    watch: Callable[..., Around | None]
    when: Callable[..., object] | None = None  # called before `watch`, with the arguments; must be quick
    by_user: bool = False  # leave out the calls that torch or gradgate makes
    writes: bool = False  # the call writes and clears, which is not the user's doing
    span: Doing | None = None  # what the call's time is spent on
    ends_run: bool = False  # the script may be stopped here
    iterables: bool = False  # arguments may be generators, which `watch` must not exhaust


class Patches:
    """Attributes that were replaced. :meth:`undo` restores them in reverse order.

    Where a class inherits the attribute, ``undo`` deletes the replacement, so that no trace remains.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._functions: dict[int, tuple[Any, Any]] = {}  # by identity, functions of modules and replacements

    def on_undo(self, act: Callable[[], Any]) -> None:
        """Call ``act`` when :meth:`undo` runs."""
        self._stack.callback(act)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set ``owner.name``, and remember the owner's own attribute, if it had one (not a base class's)."""
        old = vars(owner).get(name, _MISSING)
        self._stack.callback(_put_back, owner, name, old, new)
        setattr(owner, name, new)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a function with ``around(original, *arguments)``, which looks the same from outside."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        self.put(owner, name, original, wrapper)

    def put(self, owner: Any, name: str, original: Any, wrapper: Any) -> None:
        """Replace a function with a wrapper. :meth:`reach_imported` does so in modules that imported it by name."""
        self.replace(owner, name, wrapper)
        if isinstance(owner, types.ModuleType):
            self._functions[id(original)] = original, wrapper

    def reach_imported(self) -> None:
        """Also replace the functions in modules that have already imported them by name, in a single pass."""
        wanted = self._functions.keys()
        if _sought != wanted:
            _import_none.clear()
            _sought.clear()
            _sought.update(wanted)
        for name, module in list(sys.modules.items()):
            if not is_a(module, types.ModuleType) or name.partition(".")[0] in ("torch", "gradgate"):
                continue
            names = fields_of(module)
            known, size = _import_none.get(name, (None, 0))
            if known is module and size == len(names):
                continue
            # Most modules import none of the functions. This test finds that out ten times as fast as a loop.
            if not wanted.isdisjoint(map(id, list(names.values()))):
                for known_as, value in list(names.items()):
                    if id(value) in self._functions:
                        self.replace(module, known_as, self._functions[id(value)][1])
            elif type(file := names.get("__file__")) is str and is_installed(file):
                _import_none[name] = module, len(names)
        self._functions.clear()

    def undo(self) -> None:
        """Restore every attribute that no other code has replaced since."""
        self._stack.close()


def _put_back(owner: Any, name: str, old: Any, new: Any) -> None:
    if vars(owner).get(name) is not new:
        # Another replacement wraps ours: removing ours would remove theirs. If theirs belongs to another
        # watcher, that one puts back what was there before both.
        _beneath[id(new)] = (new, old)
        return
    while id(old) in _beneath:
        _, old = _beneath.pop(id(old))
    if old is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, old)


def tracing() -> bool:
    """Return whether torch is compiling, tensors are fake, or gradgate.plan makes a trial run: none is training."""
    if torch.compiler.is_compiling():
        return True
    modes = dispatch_modes.use()
    if not modes:
        return False
    trial = any(inspect.getattr_static(mode, "is_trial", False) is True for mode in modes)
    return trial or fake_tensors_on.use()


def caller() -> types.FrameType:
    """Return the frame whose call is watched: the innermost one outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def show_warnings_at_callers(patches: Patches) -> None:
    """Show torch's warnings at the user's line. Python would show the line of our wrapper, which calls torch."""
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
    # Python shows a warning once for each line, but many lines of the user's pass through our one line.
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
