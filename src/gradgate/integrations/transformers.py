"""Makes accumulation in the ``Trainer`` of transformers exact, and watches its gradients."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal

from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer, TrainerCallback

from gradgate.checker.reports import Report
from gradgate.integrations._exact_trainer import exact
from gradgate.integrations._watched import Watched, WatchingCallback

__all__ = ["WatchGradientsCallback", "exact"]


class WatchGradientsCallback(WatchingCallback, TrainerCallback):  # type: ignore[misc]  # from an optional library
    """Watch a training run from start to end and report what is wrong with its gradients.

    A callback for ``Trainer(callbacks=[...])`` of transformers. It does not change the computation.

    If ``Trainer.train`` raises, it calls no callback. Watching then ends, with a report, as soon as :attr:`report`
    is read, another training begins or any optimizer steps; at the latest when the callback is deleted or the
    process ends.

    Args:
        select: report only these rules: codes ("GG103"), prefixes of codes ("GG1") or categories.
        ignore: do not report these rules.
        raise_on: raise at the end of the training if there are findings of this severity or worse.
        output: a file to write the report to, in the format of its extension: .html, .json, .sarif or .txt.
        show: print the report when the training ends.

    With several ranks, each rank watches itself, and the first one prints and writes its own report. To get a
    report on all ranks, put ``gradgate check`` in front of the command.

    Raises:
        OptionError: a rule does not exist, or ``raise_on`` or ``output`` is invalid.
        FindingError: raised by ``train`` for findings that ``raise_on`` selects.

    Example:
        >>> watching = WatchGradientsCallback(ignore="GG405", raise_on="error")
        >>> watching.report is None  # until Trainer(..., callbacks=[watching]).train()
        True
    """

    _training: _Training | None = None

    @property
    def report(self) -> Report | None:
        """The report of the current or last training; None before the first training."""
        if self._training is not None:
            self._training.look()
        return super().report

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching."""
        if self._training is not None:
            self._training.end("failed")
        self._training = _Training(self._watched, first_rank=state.is_world_process_zero)
        # The training also ends when the callback is deleted or the process ends.
        weakref.finalize(self, self._training.end, "failed")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching and report."""
        if self._training is not None:
            self._training.end("finished")


class _Training:
    """A watched call of ``Trainer.train``; detects its end even if it raises."""

    def __init__(self, watched: Watched, *, first_rank: bool) -> None:
        self._watched = watched
        self._first_rank = first_rank
        self._over = False
        self._thread = threading.get_ident()
        callers = (frame.f_locals.get("self") for frame in _outwards(sys._getframe(1)))
        self._trainer = next((weakref.ref(each) for each in callers if isinstance(each, Trainer)), None)
        watched.begin()
        # After a training that raised, the next step of any optimizer shows that it is over.
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.look())

    def look(self) -> None:
        """Stop watching if no method of the trainer is running any more."""
        if self._over or self._trainer is None:
            return
        trainer, frames = self._trainer(), _outwards(sys._current_frames().get(self._thread))
        if trainer is None or not any(frame.f_locals.get("self") is trainer for frame in frames):
            self.end("failed")

    def end(self, how: Literal["finished", "failed"]) -> None:
        """Stop watching and report, once."""
        if not self._over:
            self._over = True
            self._hook.remove()
            self._watched.end(how, first_rank=self._first_rank)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
