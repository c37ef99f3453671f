"""Frozen parameters or batch-norm statistics keep changing.

## What it does
Looks for frozen parameters (``requires_grad`` is off, or the script sets their gradients to zero) that an optimizer
still changes through a leftover gradient, momentum or weight decay. Also looks for parameters that
``module.requires_grad = False`` or a misspelled attribute does not freeze. Also looks for batch norms whose running
statistics follow new data although their parameters are frozen for the rest of the run, or although they run only
under ``no_grad``, and measures the change.

## Why is this bad?
The frozen part changes a little in each step. Evaluation uses the statistics of a batch norm, so the frozen
features differ from the trained features.

## Example
    model.backbone.requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)     # zero gradients: momentum and weight decay continue
    model.train()                              # also the backbone's batch norms

## Use instead
    model.backbone.requires_grad_(False)
    optimizer.zero_grad()                      # None: the optimizer skips the backbone
    model.train()
    model.backbone.eval()

or create the optimizer with the trained parameters only.

## Known limits
Rows of a parameter, whose gradient a hook sets to zero, are not checked: momentum and weight decay still move them.
Batch norms of a network that this run trained earlier are checked only if they are frozen.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Evaluation Mode".
"""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import loops_around, nodes_of, tree_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ownership._freeze_fixes import (
    evaluated,
    none_instead,
    requires_grad,
    without_gradients,
)
from gradgate.checker.rules.ownership._idle_batch_norms import (
    RunWithoutGradients,
    run_without_gradients,
    untrained_module,
)
from gradgate.checker.rules.ownership._misfrozen import misfrozen
from gradgate.events import Backward, Frame, Ids, ModeSet, Site, StatisticsMoved, Stepped, Written

_WHY = "The frozen part changes in every step."
_STEPS = 2


def _judge(run: Run) -> Iterator[Finding]:
    yield from misfrozen(run, RULE)
    yield from _stepped(run)
    yield from _zeroed(run)
    yield from _statistics(run)
    for norms in run_without_gradients(run):
        yield _of_network(norms)


def _stepped(run: Run) -> Iterator[Finding]:
    """Yield frozen parameters that steps changed without a new gradient."""
    found: dict[int, list[tuple[Ids, bool]]] = defaultdict(list)
    for window in run.windows:
        event = run.stepped(window.step)
        drifting = (event.frozen & event.moved) - window.parameters
        if drifting:
            found[event.optimizer].append((drifting, drifting <= event.zero))
    for optimizer, steps in found.items():
        if len(steps) < _STEPS:
            continue
        ids: Ids = frozenset().union(*(drifting for drifting, _ in steps))
        name = run.optimizer(optimizer)
        how = (
            "by momentum or weight decay, because their gradients are zero instead of None"
            if all(zero for _, zero in steps)
            else "along an earlier gradient"
        )
        yield RULE.finding(
            _freezing_line(run, ids) or run.made[optimizer][0].site,
            f"{len(ids)} frozen parameter{'s' if len(ids) > 1 else ''} ({run.names(ids)}) changed in {len(steps)} "
            f"steps of {name}, {how}.",
            why=_WHY,
            advice="Set the gradients to None where the parameters are frozen, or leave the parameters out of "
            f"{name}.",
            fix=partial(without_gradients, names={run.name(number) for number in ids}),
            count=len(steps),
            evidence={"parameters": len(ids), "steps": len(steps)},
        )


def _zeroed(run: Run) -> Iterator[Finding]:
    """Yield parameters that a step changes although the script set their gradients to zero just before."""
    found: dict[Site, list[tuple[int, Ids]]] = defaultdict(list)
    written: dict[int, Site] = {}
    for event in run.events:
        if isinstance(event, Written) and event.target == "gradient":
            zero = event.op == "zero_" or event.factor == 0
            written.update(dict.fromkeys(event.parameters, event.site if zero and event.whole else ()))
        elif isinstance(event, Stepped):
            for site in set(written.values()) - {()}:
                ids = (
                    frozenset(number for number in written if written[number] == site)
                    & event.zero
                    & event.moved
                )
                if ids - event.frozen:
                    found[site].append((event.optimizer, ids))
            written.clear()
    for site, steps in found.items():
        ids = frozenset().union(*(moved for _, moved in steps))
        if len(steps) >= _STEPS:
            yield RULE.finding(
                site,
                f"The gradients of {run.names(ids)} are set to zero, but {run.optimizer(steps[-1][0])} still "
                f"changed {'it' if len(ids) == 1 else 'them'} in {len(steps)} steps, by momentum or weight "
                "decay.",
                why=_WHY,
                advice="Set the gradients to None, or freeze with requires_grad_(False) before the forward pass.",
                fix=none_instead,
                count=len(steps),
                evidence={"parameters": len(ids), "steps": len(steps)},
            )


def _statistics(run: Run) -> Iterator[Finding]:
    averages, trained = _averages(run), functools.cache(partial(_trained_until, run))
    found: dict[Frame, list[Ids]] = defaultdict(list)
    drifts: dict[Ids, tuple[float, float]] = {}
    modes: list[ModeSet] = []
    for number, event in enumerate(run.events):
        if isinstance(event, ModeSet):
            modes.append(event)
        elif isinstance(event, StatisticsMoved) and not event.parameters & averages:
            until = trained(event.parameters)
            if until is None or number < until:
                continue
            covering = [mode for mode in modes if event.parameters <= mode.parameters]
            if not covering:
                line = _freezing_line(run, event.parameters) or _where_unread(event)
            else:
                line = covering[-1].site[0] if covering[-1].training and covering[-1].site else None
            if line is not None:
                found[line].append(event.parameters)
                drifts[event.parameters] = event.drift if event.drift and until < 0 else (0.0, 0.0)
    for frame, events in found.items():
        names = {run.parameters[min(ids)].name.rpartition(".")[0] for ids in events}
        layers, known = len(set(events)), sorted(names - {""})
        shown = [", ".join(known[:2]), *([f"{len(known) - 2} more"] if len(known) > 2 else [])]
        many, called_so = layers > 1, f" ({' and '.join(shown)})" if known else ""
        times = len(events) // layers
        drift = max((drifts[ids] for ids in events), default=(0.0, 0.0))
        parts = sorted({untrained_module(run, run.name(min(ids))) for ids in events} - {""})
        calls = [f"{part}.eval()" for part in parts or ["backbone"]]
        if times >= _STEPS:
            yield RULE.finding(
                frame,
                f"{layers} frozen batch norm{'s' if many else ''}{called_so} {'are' if many else 'is'} in training "
                f"mode: {'their' if many else 'its'} running statistics changed in {times} steps, but the "
                f"parameters did not.{_in_numbers(drift)}",
                why="Evaluation uses these statistics: the frozen features differ from the trained features. "
                "Some scripts do this on purpose, to adapt the statistics to new data.",
                advice="Put the frozen part into evaluation mode again after each train(): "
                f"{', '.join(calls[:3])}{' and so on' if len(calls) > 3 else ''}.",
                fix=partial(evaluated, parts=parts),
                severity="warning",
                count=len(events),
                evidence={
                    "layers": layers,
                    "steps": times,
                    "means_moved": drift[0],
                    "variances_moved": drift[1],
                },
            )


def _of_network(norms: RunWithoutGradients) -> Finding:
    many = len(norms.names) > 1
    return RULE.finding(
        norms.where,
        f"{len(norms.names)} batch norm{'s' if many else ''} ({', '.join(norms.names[:2])}) of a network that "
        f"no loss trains {'are' if many else 'is'} in training mode: {'their' if many else 'its'} running "
        f"statistics changed in {norms.times} steps, and each output depends on the other samples of its batch.",
        why="torch.no_grad() stops gradients, but not the updates of running statistics, so the network drifts "
        "from its trained state.",
        advice=f"Call {norms.holder}.eval() before the loop, and again after each train() that includes it.",
        severity="warning",
        count=norms.times,
        evidence={"layers": len(norms.names), "steps": norms.times},
    )


def _in_numbers(drift: tuple[float, float]) -> str:
    if not any(drift):
        return ""
    means, variances = f"{drift[0]:.2g} standard deviations", f"{drift[1]:.0%}"
    return f" Since the first step, means changed by {means}, and variances by {variances}."


def _trained_until(run: Run, ids: Ids) -> int | None:
    """Return the number of the last event that trained a batch norm before it was frozen; -1 if none did.

    Return None if it is not frozen, or if it may be trained again. It counts as frozen for good once its statistics
    have moved more than twice as often as in any earlier pause of its training.
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
    return last if frozen and still and now > 2 * max(before, default=0) else None


def _averages(run: Run) -> Ids:
    """Return the parameters that the loop writes repeatedly, such as averages."""
    writes = Counter(
        number for event in run.of(Written) if event.target == "value" for number in event.parameters
    )
    return frozenset(number for number, times in writes.items() if times > _STEPS)


def _where_unread(event: StatisticsMoved) -> Frame | None:
    """Return the step after which the change was recorded, if the source of its cause can't be read."""
    return event.site[0] if event.site and tree_of(event.site[0].file) is None else None


def _freezing_line(run: Run, ids: Ids) -> Frame | None:
    """Return the freezing statement that shares the most name components with these parameters."""
    words = {word for number in ids for word in run.name(number).split(".") if not word.isdigit()}
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


RULE = Rule("GG505", "frozen-state-drift", "error", __doc__ or "", _judge)
