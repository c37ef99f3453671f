"""Finds moving averages whose source is the average itself, because the model was not copied."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import nodes_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Written

_WRITES = 3  # number of writes for each parameter
_SHARE = 0.9  # fraction of the values that the line writes


def averaged_with_itself(run: Run, where: Frame, writes: Mapping[int, Written], rule: Rule) -> Finding | None:
    """Report an average, such as a teacher or a target network, whose source is the average itself."""
    itself = [event for event in writes.values() if event.itself]
    alike = [event for event in writes.values() if event.op in {each.op for each in itself}]
    if len(itself) < _WRITES or _values(run, itself) < _SHARE * _values(run, alike):
        return None
    ids = frozenset[int]().union(*(event.parameters for event in itself))
    held = ({each for each in run.owned if owner in run.owners[each]} for owner in run.made)
    if not any(several and several <= ids for several in held):
        return None  # a part of a model, such as an encoder that a network shares with its target network
    line = _assigned(run, ids)
    return rule.finding(
        line or where,
        f"The moving average of line {where.line} shares its memory with its source, {run.names(ids)}: both "
        "are one object.",
        why="The average follows each step immediately, and the averaging changes the trained values.",
        advice="Copy the model: copy.deepcopy(model), and turn off the gradients of the copy.",
        severity="error",
        count=len(itself),
        evidence={"writes": len(itself), "line": where.line},
    )


def _values(run: Run, several: Collection[Written]) -> int:
    ids = [number for event in several for number in event.parameters]
    return sum(math.prod(run.parameters[number].shape) for number in ids if number in run.parameters)


def _assigned(run: Run, ids: Collection[int]) -> Frame | None:
    """Return the only line that assigns the trained model to a second name, or None."""
    files = dict.fromkeys(frame.file for event in run.of(Backward) for frame in event.site)
    names = {part for number in ids for part in run.name(number).split(".")[:-1]}
    found = [
        Frame(file, node.lineno, "")
        for file in files
        for node in nodes_of([file])
        if isinstance(node, ast.Assign)
        if isinstance(node.value, (ast.Name, ast.Attribute)) and len(node.targets) == 1
        if {last_name(node.value), last_name(node.targets[0])} & names
        if last_name(node.value) != last_name(node.targets[0])
    ]
    return found[0] if len(found) == 1 else None
