"""The expressions of the source from which a run's losses may be computed."""

from __future__ import annotations

import ast

from gradgate.checker.analysis._run import Run, once
from gradgate.checker.analysis._slices import slice_at
from gradgate.events import Backward, Differentiated


@once
def in_losses(run: Run) -> dict[int, ast.AST]:
    """Return the expressions of all losses that are back-propagated or differentiated, by id."""
    sites = dict.fromkeys(event.site for event in run.of(Backward, Differentiated))
    return {id(node): node for site in sites for _, node in slice_at(site, run.files).nodes}
