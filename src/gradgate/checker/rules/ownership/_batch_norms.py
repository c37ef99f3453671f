"""Finds batch norms whose running statistics follow new data although no step trains their parameters."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gradgate.checker.analysis._gradient_modes import requires_grad
from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._queries import module_without
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import function_at, inside, loops_around, nodes_of, path_to, tree_of
from gradgate.checker.analysis._statement import Statement, method, owner
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Ids, ModeSet, NoGradEntered, StatisticsMoved, Stepped

_MOST_PARTS = 4  # number of modules that a fix lists by name
_STEPS = 2
_ONLY_FROZEN = " Do this only once the part is frozen: line {} also runs earlier, or for another model."


def moving_statistics(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report batch norms in training mode that are frozen for good, or whose network no loss trains."""
    moved = grouped((pair[1].parameters, pair) for pair in run.numbered(StatisticsMoved))
    groups: dict[tuple[Frame, str], dict[Ids, list[StatisticsMoved]]] = defaultdict(lambda: defaultdict(list))
    # Lines that also put other modules into training mode, or these modules before they were frozen
    shared: set[Frame] = set()
    for ids, events in moved.items():
        since, holder = _frozen_since(run, ids), _untrained_module(run, ids)
        if since is not None:
            frozen = freezing_line(run, ids)
            for number, event in events:
                # The step after which the change was recorded, if the line that caused it can't be read
                unread = next((frame for frame in event.site[:1] if tree_of(frame.file) is None), None)
                line = _training_line(run, ids, number, frozen or unread)
                if line is not None and number >= since:
                    if _runs_for_others(run, line, ids, since):
                        shared.add(line)
                    groups[line, ""][ids].append(event if since < 0 else replace(event, drift=None))
        elif holder and len(events) >= _STEPS and _is_unused(run, ids):
            line = _training_line(run, ids, len(run.events), _running_line(run, ids))
            if line is not None:
                groups[line, holder][ids] = [event for _, event in events]
    at_least = "" if all(event.seen for event in run.of(Stepped)) else "at least "
    for (line, holder), norms in groups.items():
        layers = len(norms)
        steps = sum(map(len, norms.values())) // layers
        if steps >= _STEPS:
            names = sorted({run.name(min(ids)).rpartition(".")[0] for ids in norms} - {""})
            parts = sorted({_untrained_module(run, ids, newest=not holder) for ids in norms} - {""})
            at = Statement.at(line)
            calls = [
                f"{name}.eval()" for part in parts if (name := part if at is None else _name_at(at, part))
            ]
            named = f" ({', '.join(names[:2])}" if names else ""
            named += f" and {len(names) - 2} more)" if len(names) > 2 else ")" if names else ""
            drift = max(events[-1].drift or (0.0, 0.0) for events in norms.values())
            yield rule.finding(
                line,
                f"{layers} {'' if holder else 'frozen '}batch norm{'s' if layers > 1 else ''}{named}"
                f"{' of a network that no loss trains' if holder else ''} {'are' if layers > 1 else 'is'} in "
                f"training mode: {'their' if layers > 1 else 'its'} running statistics changed in "
                f"{at_least}{steps} steps, but the parameters did not.{_in_numbers(drift)}",
                why="Evaluation uses these statistics: the features differ from those of the trained network. Some "
                "scripts do this on purpose, to adapt the statistics to new data.",
                advice="Put the untrained part into evaluation mode, and again after each train()"
                + (f": {', '.join(calls[:3])}{' and so on' if len(calls) > 3 else ''}." if calls else ".")
                + (_ONLY_FROZEN.format(line.line) if line in shared else ""),
                fix=() if holder or line in shared else partial(_evaluated, parts=parts),
                severity="warning",
                count=steps,
                evidence={
                    "layers": layers,
                    "steps": steps,
                    "means_moved": drift[0],
                    "variances_moved": drift[1],
                },
            )


def _in_numbers(drift: tuple[float, float]) -> str:
    if not any(drift):
        return ""
    means, variances = f"{drift[0]:.2g} standard deviations", f"{drift[1]:.0%}"
    return f" Since the first step, means changed by {means}, and variances by {variances}."


def _training_line(run: Run, ids: Ids, before: int, unset: Frame | None) -> Frame | None:
    """Return the line that put a batch norm into training mode before an event; ``unset`` if none set its mode."""
    modes = [event for number, event in run.numbered(ModeSet) if number < before and ids <= event.parameters]
    while modes and modes[-1].training and (frame := next(iter(modes[-1].site), None)) and _restores(frame):
        modes = [
            event for event in modes if not event.site or function_at(event.site[0]) is not function_at(frame)
        ]
    if not modes:
        return unset
    return modes[-1].site[0] if modes[-1].training and modes[-1].site else None


def _restores(frame: Frame) -> bool:
    """Return whether a line puts a module back into the mode that it had before: ``net.train(was_training)``."""
    at = Statement.at(frame)
    if at is None or not any(node.attr == "training" for node in inside(ast.Attribute, at.function)):
        return False
    given = [call.args for call in at.calls("train")]
    return any(args and not isinstance(args[0], ast.Constant) for args in given) or any(
        isinstance(node, ast.If) for node in path_to(frame.file, frame.line)
    )


def _runs_for_others(run: Run, line: Frame, ids: Ids, since: int) -> bool:
    """Return whether a line sets training mode for other modules too, or set it before these were frozen."""
    modes = [(n, event.parameters) for n, event in run.numbered(ModeSet) if event.site[:1] == (line,)]
    return any(number < since or not ids <= parameters for number, parameters in modes)


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


def _untrained_module(run: Run, ids: Ids, *, newest: bool = False) -> str:
    """Return the largest module that holds a batch norm but no trained parameter: "model.features".

    ``newest``: if several models have the same names, only the last one counts.
    """
    trained = [number for number in run.owned & run.reached if run.parameters[number].trainable]
    if newest:
        last = {run.name(number): number for number in sorted(run.parameters)}
        trained = [number for number in trained if last[run.name(number)] == number]
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
    """Put the untrained parts of a model into evaluation mode after a line that trains or freezes the model."""
    inner = [_name_at(at, part) for part in parts]
    if method(at.node) not in ("train", "requires_grad_") or len(parts) > _MOST_PARTS:
        return ()
    root, freezes = owner(at.node), method(at.node) == "requires_grad_"
    within = all(name.startswith((f"{root}.", f"{root}[")) or (freezes and name == root) for name in inner)
    return tuple(Insert(f"{name}.eval()", after=at.line) for name in inner) if within else ()


def _name_at(at: Statement, part: str) -> str:
    """Return how a line names a module: "self.model.body" for "model.body"; "" if its name is unknown there."""
    root = owner(at.node)
    if any(
        node.id == root for loop in inside(ast.For, at.function) for node in inside(ast.Name, loop.target)
    ):
        return ""  # the name of another module in the next iteration
    inside_root = re.search(rf"\b{re.escape(root.rpartition('.')[2])}([.\[].*|)$", part)
    if method(at.node) in ("train", "requires_grad_") and inside_root is not None:
        return f"{root}{inside_root[1]}"
    first = re.split(r"[.\[]", part)[0]
    attributes = {node.attr for node in inside(ast.Attribute, at.function)}
    return part if at.knows(first) or first in attributes else ""


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
