"""Advice for a script whose trainer accumulates, so that the script has no division to change."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, statements_at
from gradgate.checker.analysis._source import function_at, inside
from gradgate.events import Backward, Frame, Site

_LINES = {
    "lightning": "Trainer(..., callbacks=[gradgate.integrations.lightning.ExactAccumulation()])",
    "transformers": "trainer = gradgate.integrations.transformers.exact(trainer)",
    "accelerate": "gradgate.integrations.accelerate.exact(accelerator)",
}


def accumulating_library(run: Run, site: Site | None = None) -> str:
    """Return the trainer that makes the windows of a run, such as "lightning", or "" if the script makes them.

    Args:
        run: run of the script.
        site: line of the backward calls; by default all backward calls of the run.
    """
    calls = [event for event in run.of(Backward) if event.seen and site in (None, event.site)]
    names = {event.trainer for event in calls}
    name = names.pop() if len(names) == 1 else ""
    return name if name in _LINES else ""


def one_line(run: Run, site: Site | None = None, computed: Site = ()) -> str:
    """Return the advice for the trainer that makes the windows of a run, or "" if the script makes them itself.

    Args:
        run: run of the script.
        site: line of the backward calls; by default all backward calls of the run.
        computed: where the script computes the loss. Used only for transformers, whose models often drop the first
            label, so that the graph may not show the count.
    """
    library = accumulating_library(run, site)
    line = _LINES.get(library, "")
    if library == "transformers" and computed:
        line = f"{line[:-1]}, {count_of(computed)})"
    return line and f"Let gradgate weight micro-batches by their numbers of items and divide once: {line}."


def count_of(computed: Site) -> str:
    """Return the argument that counts the labels of a loss that the script computes at these lines."""
    labels = f"inputs['labels']{'[:, 1:]' if _shifts(computed[0]) else ''}"
    return f"count=lambda inputs: ({labels} != -100).sum()"


def counts_labels(computed: Site) -> bool:
    """Return whether the script's loss is certainly a mean over the ``labels`` that aren't -100."""
    function = function_at(computed[0])
    names = {getattr(node, key, None) for node in inside(ast.AST, function) for key in ("id", "arg", "value")}
    calls = inside(ast.Call, *statements_at(computed[0]))
    options = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        for call in calls
        if called(call) in ("cross_entropy", "nll_loss") and len(call.args) < 3
    ]
    return (
        "labels" in names
        and len(options) == 1
        and options[0].get("ignore_index", "-100") == "-100"
        and not options[0].keys() & {"reduction", "weight", None}
    )


def _shifts(frame: Frame) -> bool:
    """Return whether the function around a line drops the first item along a later dimension: ``x[:, 1:]``."""
    slices = [node.slice for node in inside(ast.Subscript, function_at(frame))]
    return any(ast.unparse(each).endswith(", 1:)") for each in slices if isinstance(each, ast.Tuple))
