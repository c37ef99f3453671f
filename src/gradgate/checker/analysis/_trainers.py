"""Advice for a script whose trainer accumulates, so that the script has no division to change."""

from __future__ import annotations

from gradgate.checker.analysis._run import Run
from gradgate.events import Backward, Site

_LINES = {
    "lightning": "Trainer(..., callbacks=[gradgate.integrations.lightning.ExactAccumulation()])",
    "transformers": "trainer = gradgate.integrations.transformers.exact(trainer), with "
    "count=lambda inputs: (inputs['labels'] != -100).sum() if the script computes the loss itself",
    "accelerate": "gradgate.integrations.accelerate.exact(accelerator)",
}


def one_line(run: Run, site: Site | None = None) -> str:
    """Return the advice for the trainer that makes the windows of a run, or "" if the script makes them itself.

    Args:
        run: run of the script.
        site: line of the backward calls; by default all backward calls of the run.
    """
    names = {event.trainer for event in run.of(Backward) if event.seen and site in (None, event.site)}
    line = _LINES.get(names.pop(), "") if len(names) == 1 else ""
    return line and f"Let gradgate weight micro-batches by their numbers of items and divide once: {line}."
