"""Finds the user's code on the call stack: the frames that belong to neither torch nor another library."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from gradgate.events import Frame, Site

_DEPTH = 16  # user frames that are kept

_OURS = str(Path(__file__).absolute().parent) + os.sep  # unresolved, as the file names in code objects are
# Its frames lie between a module and its caller.
_WATCHING = str(Path(_OURS) / "checker" / "recording") + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_LIBRARIES = (
    _TORCH,
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
_TYPED = ("<ipython", "<stdin", "<doctest", "<python-input", "<console", "<input")
_TRACERS = tuple(_TORCH + name for name in ("fx", "_functorch", "_dynamo", "_inductor"))

_MOST_PLACES = 8192

_sites: dict[Site, Site] = {}
# Keyed by the running instructions, because Python recomputes a line number each time it is read. The code objects
# are kept alive, so that their ids are not reused.
_places: dict[tuple[tuple[int, int], ...], tuple[Site, list[CodeType]]] = {}
_kinds: dict[str, str] = {}
_scripts: set[str] = set()


def kind_of(file: str) -> str:
    """Return the owner of a source file: "user", "ours", "tracer" (torch's compiler) or "library"."""
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = _judge(file)
    return kind


def _judge(file: str) -> str:
    if file.startswith("<"):
        # Notebook cells and code typed into Python are the user's. Code that libraries generate is not.
        return "user" if file.startswith(_TYPED) or (file == "<string>" and _is_command()) else "library"
    path = str(Path(file).absolute())
    if path.startswith(_OURS):
        return "ours"
    if path.startswith(_TRACERS):
        return "tracer"
    if path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path:
        return "library"
    return "user"


def _is_command() -> bool:
    """Return whether ``python -c`` runs the program. multiprocessing also starts its processes that way."""
    return sys.argv[:1] == ["-c"] and "--multiprocessing-fork" not in sys.orig_argv


def _is_executed(frame: FrameType) -> bool:
    """Return whether the user's code runs this frame by ``exec``. If so, treat "<string>" as a user file."""
    code, caller = frame.f_code, frame.f_back
    if code.co_filename != "<string>" or code.co_name != "<module>" or caller is None:
        return False
    if kind_of(caller.f_code.co_filename) != "user":
        return False
    _kinds["<string>"] = "user"
    return True


def call_mine(file: str) -> None:
    """Treat the watched script as a user file, whatever its folder. Its module is the outermost user frame."""
    _kinds[file] = "user"
    _scripts.add(file)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frames(frame: FrameType | None = None) -> list[FrameType]:
    """Return the running frames of the user's code, innermost first."""
    current: FrameType | None = frame or sys._getframe(1)
    found: list[FrameType] = []
    while current is not None and len(found) < _DEPTH:
        code = current.f_code
        file = code.co_filename
        kind = _kinds.get(file) or kind_of(file)
        if kind == "user" or (file == "<string>" and kind == "library" and _is_executed(current)):
            found.append(current)
            if code.co_name == "<module>" and file in _scripts:
                break
        elif kind == "ours" and found and not code.co_filename.startswith(_WATCHING):
            break  # the frames below run the script
        current = current.f_back
    return found


def library_frames() -> list[FrameType]:
    """Return the running frames of libraries other than torch, innermost first."""
    return [
        frame
        for frame in outwards(sys._getframe(1))
        if kind_of(file := frame.f_code.co_filename) == "library"
        and f"{os.sep}site-packages{os.sep}" in file
        and not file.startswith(_TORCH)
    ]


def here(frame: FrameType | None = None) -> Site:
    """Return the current position of the user's code. Equal sites are one object."""
    frames = user_frames(frame or sys._getframe(1))
    key = tuple([(id(each.f_code), each.f_lasti) for each in frames])
    place = _places.get(key)
    if place is None:
        if len(_places) >= _MOST_PLACES:
            _places.clear()
        site = tuple(
            Frame(_path(each.f_code.co_filename), each.f_lineno, each.f_code.co_name) for each in frames
        )
        place = _places[key] = _sites.setdefault(site, site), [each.f_code for each in frames]
    return place[0]


def _path(file: str) -> str:
    return file if file.startswith("<") else str(Path(file).absolute())


# The functions in which trainers call backward for windows of their own, not for the script's.
_TRAINER_WINDOWS: dict[tuple[Any, str], str] = {
    ("lightning.pytorch.loops.optimization.automatic", "backward_fn"): "lightning",
    ("pytorch_lightning.loops.optimization.automatic", "backward_fn"): "lightning",
    ("transformers.trainer", "training_step"): "transformers",
}


def trainer_at_work() -> str:
    """Return the trainer library that calls backward for its own window on this thread, or "" if there is none."""
    found = ""
    for frame in library_frames():
        place = frame.f_globals.get("__name__"), frame.f_code.co_name
        if place == ("accelerate.accelerator", "backward"):
            steps = getattr(frame.f_locals.get("self"), "gradient_accumulation_steps", 1)
            found = "accelerate" if steps > 1 else ""
        found = _TRAINER_WINDOWS.get(place, found)
    return found
