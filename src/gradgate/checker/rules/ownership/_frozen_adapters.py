"""Finds low-rank adapters that are frozen at zero while the layer that they adapt is trained."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import definitions, scopes_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ownership._batch_norms import freezing_line


def frozen_adapters(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report two frozen factors of a product, one of them zero, unless a trained parameter has the same name."""
    found: dict[tuple[str, ...], set[int]] = defaultdict(set)
    last = max(run.stepping, default=-1)
    for number in run.held(last) & run.moved if run.ended == "finished" and run.stepping else ():
        parameter = run.parameters[number]
        if parameter.idle and parameter.trainable:
            found[parameter.idle].add(number)
    known, scopes = run.words(run.parameters), [scope for file in run.files for scope in scopes_of(file)]
    for (zero, other), numbers in found.items():
        names, ids = {each.partition(".")[0] for each in (zero, other)}, frozenset(numbers)
        made = [each for name in names for scope in scopes for each in definitions(scope).get(f".{name}", ())]
        line, times = freezing_line(run, ids), len(run.steps(last))
        if (
            names & known
            or line is None
            or any("requires_grad=False" in ast.unparse(each.value) for each in made)
        ):
            continue
        yield rule.finding(
            line,
            f"`{zero}` is zero and frozen, and so is `{other}`, the other factor: the adapter adds nothing. "
            f"{times} steps changed the layer that it adapts instead: {run.names(ids)}.",
            why="The pretrained layer is trained, and the adapter keeps its initial values.",
            advice=f"Freeze the layer, and train `{zero}` and `{other}`. Is the condition the wrong way round?",
            severity="warning",
            count=times,
            evidence={"parameters": len(ids), "steps": times},
            about=ids,
        )
