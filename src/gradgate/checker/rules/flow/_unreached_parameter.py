"""A parameter that the optimizer is to train has no part in any loss.

## What it does
Looks for trainable parameters in an optimizer that steps, which no backward call ever reaches: a layer (an
attribute of a model, or a variable of a flat script) that is never called, or one that runs and whose output ends
in no loss. Nothing is said of layers that only some branch of the code uses, and which did not run.

## Why is this bad?
The parameter stays at its random start, and the model is another than the one that was written down.

## Example
    x = x + self.attn(self.norm1(x))
    x = x + self.mlp(self.norm1(x))     # norm2 is never used

## Use instead
    x = x + self.mlp(self.norm2(x))

or leave the layer out of the model. ``loss_of_task.backward()`` has to be part of what is back-propagated for each
head that is to be trained.

## Known limits
A layer of a library's own model that has no part in the loss (a pooler) is a note only, as are layers that are
never called at all, which may be left over, and experts and heads of a list that did not run.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html, ``find_unused_parameters``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._parameter_usage import replaced, unreached
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._unused import holders_of, is_read, line_of_loss, line_without, skipped_in
from gradgate.checker.rules._finding import Finding, Severity
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.flow._broken_graph import cut_off
from gradgate.events import Backward, Frame, Ids, OptimizerMade, Ran, Stepped

_RUNS = 2


def _judge(run: Run) -> Iterator[Finding]:
    missing = unreached(run)
    if not missing:
        return
    for cut, _ in cut_off(run, missing).values():
        missing -= cut
    for one in replaced(run):
        missing -= one.old
    files = files_of({event.site for event in run.of(Backward, Stepped, OptimizerMade, Ran)})
    for (attribute, frame), ids in _skipped(run, missing, files).items():
        missing -= ids
        yield _finding(run, attribute, "is gone through only in part", frame, frozenset(ids))
    for (key, whole), ids in _by_layer(run, missing, files).items():
        found = _of_layer(run, key, whole, frozenset(ids), files)
        if found is not None:
            yield found


def _skipped(run: Run, missing: Ids, files: tuple[str, ...]) -> dict[tuple[str, Frame], set[int]]:
    """Return layers of a list whose loop leaves them out, by the list's attribute and that line."""
    reached = [run.name(number) for number in run.reached]
    found: dict[tuple[str, Frame], set[int]] = defaultdict(set)
    for number in missing:
        parts = run.name(number).split(".")
        for place in (place for place, part in enumerate(parts) if part.isdigit() and place):
            path = ".".join(parts[:place])
            others = any(name.startswith(path + ".") for name in reached)
            itself = any(name.startswith(f"{path}.{parts[place]}.") for name in reached)
            frame = skipped_in(parts[place - 1], files) if others and not itself else None
            if frame is not None:
                found[parts[place - 1], frame].add(number)
    return found


def _by_layer(run: Run, missing: Ids, files: tuple[str, ...]) -> dict[tuple[str, bool], set[int]]:
    """Group parameters by what holds them, ".norm2" or the variable "norm2".

    False: it also holds others, which are reached.
    """
    groups: dict[tuple[str, bool], set[int]] = defaultdict(set)
    for number in missing:
        name = run.name(number)
        paths = holders_of(name, files)
        if len(paths) > 1 and paths[0] == name and _wholly(run, paths[1], missing):
            paths = paths[1:]  # its layer says more than a weight of it
        if not paths:
            continue
        whole = _wholly(run, paths[0], missing)
        _, dot, last = paths[0].rpartition(".")
        if dot or whole:
            groups[dot + last, whole].add(number)
    return groups


def _wholly(run: Run, path: str, missing: Ids) -> bool:
    """Say whether nothing of a layer is reached."""
    return all(
        one.id in missing
        for one in run.parameters.values()
        if one.name == path or one.name.startswith(path + ".")
    )


def _of_layer(run: Run, key: str, whole: bool, ids: Ids, files: tuple[str, ...]) -> Finding | None:
    ran = [event for event in run.of(Ran) if event.parameters & ids and event.recording]
    frame: Frame | None = None
    severity: Severity = "warning"
    if whole and not is_read(key, files):
        found, how = line_without(key, files), "is never used"
        frame, sure = found or (None, False)
        severity = "warning" if sure else "info"
    elif len(ran) >= _RUNS:
        backwards = {event.site for event in run.of(Backward)}
        frame, how = (
            line_of_loss(run, ids, ran[0].site, backwards, files),
            "runs, but its output is in no loss",
        )
        severity = (
            "warning" if frame is not None else "info"
        )  # a module of a library may be asked for another output
        frame = frame or ran[0].site[0]
    if frame is None:
        return None
    return _finding(run, key.lstrip("."), how, frame, ids, severity)


def _finding(
    run: Run, attribute: str, how: str, frame: Frame, ids: Ids, severity: Severity = "warning"
) -> Finding:
    layers = {run.name(number).rpartition(".")[0] for number in ids if "." in run.name(number)}
    return RULE.finding(
        frame,
        f"`{attribute}` {how}: no gradient reached {run.names(ids)} in {run.log.steps} steps.",
        why="It stays at its random start, and the model lacks what it was meant to do.",
        advice=f"Use `{attribute}` in the forward pass and in the loss, or take it out of the model.",
        severity=severity,
        count=max(1, len(layers)),
        evidence={"parameters": len(ids), "steps": run.log.steps},
    )


RULE = Rule("GG401", "unreached-parameter", "warning", __doc__ or "", _judge)
