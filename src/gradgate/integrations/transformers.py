"""Watching what the ``Trainer`` of transformers does with gradients."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Literal

from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer, TrainerCallback

from gradgate.checker.reports import Report
from gradgate.integrations._watched import Watched, WatchingCallback

__all__ = ["WatchGradients"]


class WatchGradients(WatchingCallback, TrainerCallback):  # type: ignore[misc]  # of a library that is not always there
    """Watch a training from its start to its end, and report what is wrong with its gradients.

    A callback for ``Trainer(callbacks=[...])`` of transformers. It changes nothing that is computed.

    A ``Trainer.train`` that raises calls no callback. That it is over shows when :attr:`report` is asked for, when
    the next training begins, at the next step of any optimizer, or at the latest when the callback is dropped or
    the process ends. Then the watching stops, and the report tells what was seen.

    Args:
        select: report only these rules: codes ("GG103"), beginnings of codes ("GG1") or categories.
        ignore: do not report these.
        raise_on: raise at the end of the training if there are findings of that severity, or of a worse one.
        output: a file to write the report to; its ending says how: .html, .json, .sarif, .txt.
        show: print the report when the training ends.

    On several ranks each watches itself; the first one prints and writes its own. ``gradgate check`` in front of
    the command joins what all have seen.

    Raises:
        OptionError: no rule has such a name, ``raise_on`` is something else, or ``output`` cannot be written so.
        FindingError: out of ``train``, as ``raise_on`` asks.

    Example:
        >>> watching = WatchGradients(ignore="GG405", raise_on="error")
        >>> watching.report is None  # until Trainer(..., callbacks=[watching]).train()
        True
    """

    _training: _Training | None = None

    @property
    def report(self) -> Report | None:
        """What was found: so far, or in the last training; None before the first."""
        if self._training is not None:
            self._training.look()
        return super().report

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        if self._training is not None:
            self._training.end("failed")
        self._training = _Training(self._watched, first_rank=state.is_world_process_zero)
        # Also when the callback is dropped, and at the end of the process.
        weakref.finalize(self, self._training.end, "failed")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End, and report."""
        if self._training is not None:
            self._training.end("finished")


class _Training:
    """One call of ``Trainer.train`` that is watched; knows when it is over, though it raised."""

    def __init__(self, watched: Watched, *, first_rank: bool) -> None:
        self._watched = watched
        self._first_rank = first_rank
        self._over = False
        self._thread = threading.get_ident()
        self._call = _call_of_trainer(sys._getframe(1))
        watched.begin()
        # Torch lets go of it in `end`; a step of whatever comes after a training that raised is its end, too.
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.look())

    def look(self) -> None:
        """End where the call that began this is running no more."""
        if not self._over and self._call is not None and not any(map(self._is_it, self._frames())):
            self.end("failed")

    def end(self, how: Literal["finished", "failed"]) -> None:
        """Stop watching and report; once."""
        if not self._over:
            self._over = True
            self._hook.remove()
            self._watched.end(how, first_rank=self._first_rank)

    def _frames(self) -> Iterator[FrameType]:
        return _outwards(sys._current_frames().get(self._thread))

    def _is_it(self, frame: FrameType) -> bool:
        assert self._call is not None  # noqa: S101
        code, trainer = self._call
        return frame.f_code is code and frame.f_locals.get("self") is trainer()


def _call_of_trainer(frame: FrameType) -> tuple[CodeType, weakref.ref[Any]] | None:
    """Return the function of a trainer that is calling its callbacks, and the trainer. Both are known by name only.

    Frames are not kept: they would keep all that their functions know alive.
    """
    for each in _outwards(frame):
        trainer = each.f_locals.get("self")
        if isinstance(trainer, Trainer):
            return each.f_code, weakref.ref(trainer)
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
