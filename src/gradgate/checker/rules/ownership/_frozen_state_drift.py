"""What is meant to be frozen moves on.

## What it does
Looks for frozen parameters (``requires_grad`` is off, or their gradients are set to zero by hand) that an optimizer
goes on moving, by a gradient that was left over, by its momentum or by weight decay; and for batch norms all of
whose parameters are frozen for the whole run, while their running statistics follow the new data.

## Why is this bad?
What was kept is changed all the same, a little in each step. The statistics of a batch norm are used in evaluation:
the frozen features are no longer those that were trained.

## Example
    model.backbone.requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)     # a zero gradient: momentum and weight decay go on
    model.train()                              # the backbone's batch norms too

## Use instead
    model.backbone.requires_grad_(False)
    optimizer.zero_grad()                      # None: the optimizer passes over it
    model.train()
    model.backbone.eval()

or make the optimizer of what is trained only.

## Known limits
Rows of a parameter are watched where a hook of the parameter sets their gradient to zero.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Evaluation Mode".
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import tree_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame, Ids, ModeSet, Site, StatisticsMoved, Stepped, Written

_WHY = "What was to be kept as it is changes in every step."
_STEPS = 2


def _judge(run: Run) -> Iterator[Finding]:
    yield from _stepped(run)
    yield from _zeroed(run)
    yield from _rows(run)
    yield from _statistics(run)


def _stepped(run: Run) -> Iterator[Finding]:
    """Parameters that are frozen, and that a step moved without a gradient of theirs since."""
    found: dict[int, tuple[set[int], int, bool]] = defaultdict(lambda: (set(), 0, True))
    for window in run.windows:
        event = run.stepped(window.step)
        fresh = {number for one in window.fresh for number in one.atom}
        drifting = (event.frozen & event.moved) - fresh
        if drifting:
            ids, steps, zero = found[event.optimizer]
            found[event.optimizer] = (ids | drifting, steps + 1, zero and drifting <= event.zero)
    for optimizer, (ids, steps, zero) in found.items():
        if steps < _STEPS:
            continue
        name, made = run.optimizer(optimizer), run.made[optimizer][0].site
        how = (
            "by momentum or weight decay, as their gradients are zero and not None"
            if zero
            else "along a gradient from before"
        )
        yield RULE.finding(
            _freezing_line(run, frozenset(ids)) or made,
            f"{len(ids)} frozen parameter{'s' if len(ids) > 1 else ''} ({run.names(ids)}) moved in {steps} "
            f"steps of {name}, {how}.",
            why=_WHY,
            advice=f"Set their gradients to None when they are frozen, or leave them out of {name}.",
            count=steps,
            evidence={"parameters": len(ids), "steps": steps},
        )


def _zeroed(run: Run) -> Iterator[Finding]:
    """Parameters whose gradients are set to zero by hand right before a step, which moves them all the same."""
    found: dict[Site, tuple[Ids, int, int]] = {}
    written: dict[int, Site] = {}
    for event in run.events:
        if isinstance(event, Written) and event.target == "gradient":
            zero = event.op == "zero_" or event.factor == 0
            written.update(dict.fromkeys(event.parameters, event.site if zero and event.whole else ()))
        elif isinstance(event, Stepped):
            for site in {site for site in written.values() if site}:
                ids = frozenset(one for one, at in written.items() if at == site) & event.zero & event.moved
                if ids - event.frozen:
                    before, steps, _ = found.get(site, (frozenset(), 0, 0))
                    found[site] = (before | ids, steps + 1, event.optimizer)
            written.clear()
    for site, (ids, steps, optimizer) in found.items():
        if steps >= _STEPS:
            yield RULE.finding(
                site,
                f"The gradients of {run.names(ids)} are set to zero, and {run.optimizer(optimizer)} moved "
                f"{'it' if len(ids) == 1 else 'them'} all the same in {steps} steps, by momentum or weight decay.",
                why=_WHY,
                advice="Set the gradients to None, or freeze with requires_grad_(False) before the forward pass.",
                count=steps,
                evidence={"parameters": len(ids), "steps": steps},
            )


def _rows(run: Run) -> Iterator[Finding]:
    found: dict[int, list[Stepped]] = defaultdict(list)
    for event in run.of(Stepped):
        if event.skipped_rows:
            found[event.optimizer].append(event)
    for optimizer, events in found.items():
        if len(events) >= _STEPS:
            ids: Ids = frozenset().union(*(event.skipped_rows for event in events))
            yield RULE.finding(
                run.made[optimizer][0].site,
                f"A hook sets the gradient of some rows of {run.names(ids)} to zero, and "
                f"{run.optimizer(optimizer)} moved these rows in {len(events)} steps, by momentum or weight decay.",
                why=_WHY,
                advice="Put the parameter in a group without weight decay and momentum, or hold the rows in a "
                "buffer.",
                count=len(events),
                evidence={"steps": len(events)},
            )


def _statistics(run: Run) -> Iterator[Finding]:
    used = run.reached | frozenset(number for event in run.of(Stepped) for number in event.moved)
    found: dict[Frame, list[StatisticsMoved]] = defaultdict(list)
    training: list[ModeSet] = []
    for event in run.events:
        if isinstance(event, ModeSet):
            training.append(event)
        elif isinstance(event, StatisticsMoved) and _frozen(run, event.parameters - used) == event.parameters:
            covering = [mode for mode in training if event.parameters <= mode.parameters]
            if covering and covering[-1].training and covering[-1].site:
                found[covering[-1].site[0]].append(event)
            elif not covering:
                line = _freezing_line(run, event.parameters) or _where_unread(event)
                if line is not None:
                    found[line].append(event)
    for frame, events in found.items():
        layers = {event.parameters for event in events}
        times = len(events) // len(layers)
        if times >= _STEPS:
            yield RULE.finding(
                frame,
                f"{len(layers)} frozen batch norm{'s' if len(layers) > 1 else ''}{_called(run, layers)} "
                f"{'are' if len(layers) > 1 else 'is'} in training mode: "
                f"{'their' if len(layers) > 1 else 'its'} running statistics moved in {times} steps, the "
                "parameters never.",
                why="Evaluation uses these statistics: the frozen features are no longer those that were trained.",
                advice="Put the frozen part into evaluation mode again after each train(): backbone.eval().",
                count=len(events),
                evidence={"layers": len(layers), "steps": times},
            )


def _frozen(run: Run, ids: Ids) -> Ids:
    return frozenset(one for one in ids if not run.parameters[one].trainable and run.parameters[one].still)


def _called(run: Run, layers: Iterable[Ids]) -> str:
    known = {run.parameters[min(ids)].name.rpartition(".")[0] for ids in layers} - {""}
    names = sorted(known)
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f" ({', '.join(names[:2])}{more})" if names else ""


def _where_unread(event: StatisticsMoved) -> Frame | None:
    """Return the step after which it was seen, where its source cannot be read: that may say why it is so."""
    return event.site[0] if event.site and tree_of(event.site[0].file) is None else None


def _freezing_line(run: Run, ids: Ids) -> Frame | None:
    """Return the statement that switches gradients off, the one that names what these parameters belong to."""
    words = {word for number in ids for word in run.name(number).split(".") if not word.isdigit()}
    lines = []
    for file in files_of({event.site for event in run.of(Stepped)}):
        tree = tree_of(file)
        for node in ast.walk(tree) if tree is not None else ():
            if _freezes(node):
                text = ast.unparse(node)
                lines.append((sum(word in text for word in words), Frame(file, node.lineno, "")))  # type: ignore[attr-defined]
    return max(lines, key=lambda pair: pair[0])[1] if lines else None


def _freezes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and called(node) == "requires_grad_":
        return bool(node.args) and getattr(node.args[0], "value", None) is not True
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        return getattr(node.value, "value", None) is not True
    return False


RULE = Rule("GG505", "frozen-state-drift", "error", __doc__ or "", _judge)
