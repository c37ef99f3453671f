"""Finds batch norms whose running statistics follow new data although no step trains their parameters."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_modes import requires_grad
from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._queries import module_without
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import files_of, loops_around, nodes_of, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import ownership as texts
from gradgate.events import Backward, Frame, Ids, ModeSet, NoGradEntered, StatisticsMoved, Stepped

_STEPS = 2  # a single forward pass may be a test of the script's own


def moving_statistics(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report batch norms in training mode that are frozen for good, or whose network no loss trains."""
    moved = grouped((event.parameters, (number, event)) for number, event in run.numbered(StatisticsMoved))
    groups: dict[Frame, dict[Ids, list[StatisticsMoved]]] = defaultdict(dict)
    for ids, entries in moved.items():
        since = _frozen_since(run, ids)
        if since is None and _is_unused(run, ids):
            since, unset = -1, _running_line(run, ids)
        else:
            # Code that can't be read is named where the statistics were seen to move.
            unread = (frame for frame in entries[-1][1].site[:1] if tree_of(frame.file) is None)
            unset = freezing_line(run, ids) or next(unread, None)
        events = [event for number, event in entries if since is not None and number >= since]
        line = _training_line(run, ids, entries[-1][0], unset)
        if line is not None and len(events) >= _STEPS:
            groups[line][ids] = events
    for line, norms in groups.items():
        parts = sorted({_untrained_module(run, ids) for ids in norms} - {""})
        names = sorted({run.name(min(ids)).rpartition(".")[0] for ids in norms} - {""})
        means, variances = max(events[-1].drift or (0.0, 0.0) for events in norms.values())
        steps = min(map(len, norms.values()))
        yield rule.say(
            line,
            texts.STATISTICS_MOVE,
            fix=lambda at, parts=parts: _evaluated(at, parts),  # type: ignore[misc]
            severity="warning",
            count=steps,
            layers=len(norms),
            s="s" if len(norms) > 1 else "",
            names=f"{', '.join(names[:2])}{f' and {len(names) - 2} more' if len(names) > 2 else ''}",
            are="are" if len(norms) > 1 else "is",
            their="their" if len(norms) > 1 else "its",
            steps=steps,
            drift=f" Since the first step, means changed by {means:.2g} standard deviations, and variances by "
            f"{variances:.0%}."
            if means or variances
            else "",
            calls=f": {', '.join(f'{part}.eval()' for part in parts[:3])}" if parts else "",
        )


def _training_line(run: Run, ids: Ids, before: int, unset: Frame | None) -> Frame | None:
    """Return the line that put a batch norm into training mode before an event; ``unset`` if none set its mode."""
    modes = [event for number, event in run.numbered(ModeSet) if number < before and ids <= event.parameters]
    if not modes:
        return unset
    return modes[-1].site[0] if modes[-1].training and modes[-1].site else None


def _frozen_since(run: Run, ids: Ids) -> int | None:
    """Return the number of the last event that trained a batch norm before it was frozen; -1 if none did.

    Return None if it is not frozen, if it may be trained again, or if the loop overwrites its parameters
    repeatedly, as for an average. It counts as frozen for good once its statistics have moved more than twice as
    often as in any earlier pause of its training.
    """
    pauses, last = [0], -1
    for number, event in run.numbered(Backward, Stepped, StatisticsMoved):
        if isinstance(event, StatisticsMoved):
            pauses[-1] += event.parameters == ids
        elif ids & (event.reached if isinstance(event, Backward) else event.moved):  # type: ignore[attr-defined]
            last = number
            pauses += [0] if pauses[-1] else []
    *before, now = pauses
    parameters = [run.parameters[number] for number in ids]
    frozen = not any(each.trainable for each in parameters)
    still = last >= 0 or all(each.still for each in parameters)
    writes = sum(bool(event.parameters & ids) for event in run.written("value"))
    return last if frozen and still and now > 2 * max(before, default=0) and writes <= _STEPS else None


def _untrained_module(run: Run, ids: Ids) -> str:
    """Return the largest module that holds a batch norm but no trained parameter: "model.features"."""
    last = {run.name(number): number for number in sorted(run.parameters)}  # a name may be given again
    trained = [
        number
        for number in run.owned & run.reached
        if run.parameters[number].trainable and last[run.name(number)] == number
    ]
    root, *inner = module_without(run, min(ids), trained) or [""]
    return root + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in inner)


def _running_line(run: Run, ids: Ids) -> Frame | None:
    """Return the only line that turns gradients off in most steps; else the line that makes the network."""
    steps = [number for number, _ in run.numbered(Stepped)]
    inside = Counter(event.site for number, event in run.numbered(NoGradEntered) if number < steps[-1])
    often = [site[0] for site, times in inside.items() if site and times * 2 >= len(steps)]
    made = run.parameters[min(ids)].made
    return often[0] if len(often) == 1 else next(iter(made[-1:]), None)


def _is_unused(run: Run, ids: Ids) -> bool:
    """Return whether trainable parameters are in no loss or optimizer, and are no copy of trained parameters."""
    several = [run.parameters[number] for number in ids]
    if ids & (run.reached | run.owned | run.moved) or not all(
        each.trainable and each.still for each in several
    ):
        return False
    shapes = Counter(each.shape for each in run.parameters.values() if each.root == several[0].root)
    trained = Counter(run.parameters[number].shape for number in run.owned & run.reached)
    return several[0].root == "" or bool(shapes - trained)  # else a copy, such as a target network


def _evaluated(at: Statement, parts: list[str]) -> Fix:
    """Put the untrained parts of a model into evaluation mode after the line that trains the model."""
    root = owner(at.node)
    name = root.removeprefix("self.")
    inner = [part for part in parts if part.startswith((f"{name}.", f"{name}["))]
    if method(at.node) != "train" or not inner or len(inner) < len(parts):
        return ()
    return tuple(Insert(f"{root}{part.removeprefix(name)}.eval()", after=at.line) for part in inner)


def freezing_line(run: Run, ids: Ids) -> Frame | None:
    """Return the freezing statement that shares the most name components with these parameters."""
    words = {word for word in run.words(ids) if not word.isdigit()}
    lines = []
    for file in files_of({event.site for event in run.of(Stepped)}):
        for node in nodes_of([file]):
            value = requires_grad(node)
            if value is not None and getattr(value, "value", None) is not True:
                loops = [
                    loop for loop in loops_around(Frame(file, value.lineno, "")) if isinstance(loop, ast.For)
                ]
                text = " ".join(map(ast.unparse, [node, *(loop.iter for loop in loops)]))
                lines.append((sum(word in text for word in words), Frame(file, value.lineno, "")))
    return max(lines, key=lambda pair: pair[0])[1] if lines else None
