"""The optimizer holds a parameter that no loss uses.

## What it does
Looks for trainable parameters that an optimizer holds but no backward call ever reaches. Examples are a layer (an
attribute of a model, or a variable of a script) that is never called or whose output is in no loss, and learned
rates of inner steps (MAML) whose result is in no loss. Layers that did not run because they belong to an unused
branch are not reported. If a layer runs but the script discards the result of an operation such as ``index_add``,
the finding is at the line of the operation.

## Why is this bad?
The parameter keeps its random initial value, and the model lacks a part of its design.

## Example
    x = x + self.attn(self.norm1(x))
    x = x + self.mlp(self.norm1(x))     # norm2 is never used

## Use instead
    x = x + self.mlp(self.norm2(x))

or remove the layer from the model. To train a head, add its loss to the loss that is back-propagated.

## Known limits
The finding is only a note if a layer may be unused on purpose: a layer of a library's own model that is in no loss
(a pooler), a layer that is never called in a model that loads pretrained weights, or experts and heads of a list
that did not run. If a constant replaces a layer's output, the finding is at the layer that is used before that
layer. Latent codes that no step changes are not found if the optimizer holds tensors of data in their place.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html, ``find_unused_parameters``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._parameter_usage import replaced, unreached
from gradgate.checker.analysis._queries import shared_line, within
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._unused_layers import (
    dropped_result,
    holders_of,
    is_read,
    line_of_loss,
    line_without,
    shortened_loop,
    shown_loss,
)
from gradgate.checker.analysis._values import flow
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import Finding, FixAt, Rule, Severity
from gradgate.checker.rules.flow._graph_fixes import kept
from gradgate.checker.rules.texts import flow_reach as texts
from gradgate.events import Backward, Differentiated, Frame, Ids, Ran

_RUNS = 2


def _judge(run: Run) -> Iterator[Finding]:
    missing = unreached(run) - flow(run).unused_sums - flow(run).behind_losses()
    for swap in replaced(run):
        missing -= swap.old
    if not missing:
        return
    for (attribute, frame), numbers in _left_out_of_loops(run, missing).items():
        missing -= numbers
        yield _finding(run, attribute, "is only partly iterated over", frame, ids=frozenset(numbers))
    for (key, whole), numbers in _by_layer(run, missing).items():
        found = _of_layer(run, key, whole, frozenset(numbers))
        if found is not None:
            yield found


def _left_out_of_loops(run: Run, missing: Ids) -> dict[tuple[str, Frame], set[int]]:
    """Return the layers of a list that a loop skips. The key is the list's attribute and the loop's line."""
    found: dict[tuple[str, Frame], set[int]] = defaultdict(set)
    for number in missing:
        parts = run.name(number).split(".")
        for place in (place for place, part in enumerate(parts) if part.isdigit() and place):
            path, itself = ".".join(parts[:place]), ".".join(parts[: place + 1])
            if run.reached & within(run, path) and not run.reached & within(run, itself):
                frame = shortened_loop(parts[place - 1], run.files)
                if frame is not None:
                    found[parts[place - 1], frame].add(number)
    return found


def _by_layer(run: Run, missing: Ids) -> dict[tuple[str, bool], set[int]]:
    """Group parameters by layer (".norm2" or the variable "norm2") and by whether the whole layer is missing."""
    groups: dict[tuple[str, bool], set[int]] = defaultdict(set)
    for number in missing:
        name = run.name(number)
        paths = holders_of(name, run.files)
        if len(paths) > 1 and paths[0] == name and within(run, paths[1]) <= missing:
            paths = paths[1:]  # the name of the layer is more useful than the name of a weight
        if not paths:
            continue
        whole = within(run, paths[0]) <= missing
        _, dot, last = paths[0].rpartition(".")
        if dot or whole:
            groups[dot + last, whole].add(number)
    return groups


def _of_layer(run: Run, key: str, whole: bool, ids: Ids) -> Finding | None:
    ran = [event for event in run.of(Ran) if event.parameters & ids and event.recording]
    found = partial(_finding, run, key.lstrip("."), ids=ids)
    if whole and not is_read(key, run.files):
        line = line_without(key, run.files)
        return found("is never used", line[0], severity="warning" if line[1] else "info") if line else None
    if len(ran) >= _RUNS:
        unused = "runs, but no loss that is back-propagated uses the output"
        dropped = dropped_result(event.site for event in ran)
        if dropped is not None:
            advice = (
                f"{dropped[1]}() returns a new tensor, which is discarded here: assign the result, or call "
            )
            return found(unused, dropped[0], advice=f"{advice}{dropped[1]}_().", fix=kept)
        frame = line_of_loss(run, ids, ran[0].site, run.files)
        shown = shown_loss(run, ids, frame) if frame is not None else None
        if shown is not None:
            place, name = shown
            advice = f"Add `{name}` to the loss that is back-propagated, or remove the layer."
            return found(
                f"runs, but `{name}`, which uses the output, is only displayed", place, advice=advice
            )
        return found(unused, frame or ran[0].site[0], severity="warning" if frame else "info")
    inner = _in_inner_steps(run, ids) if whole else None
    return inner and found(
        "is used in inner steps whose result is in no loss",
        inner,
        advice="Compute the loss with the weights that these steps return, not with the initial weights.",
    )


def _in_inner_steps(run: Run, ids: Ids) -> Frame | None:
    """Return the line of inner steps (MAML) whose graph includes parameters that no loss reaches.

    A single derivative doesn't count: an energy's constant doesn't affect the forces, so it needs no gradient.
    """
    events: list[Differentiated] = [
        event
        for event in run.of(Differentiated)
        if event.create and event.old_nodes and ids <= event.reached - event.asked and event.site
    ]
    if len(events) < _RUNS:
        return None
    site = events[_RUNS - 1].site
    return shared_line(site, [event.site[0] for event in run.of(Backward) if event.site]) or site[0]


def _finding(
    run: Run,
    attribute: str,
    how: str,
    frame: Frame,
    *,
    ids: Ids,
    severity: Severity = "warning",
    advice: str = "",
    fix: Fix | FixAt = (),
) -> Finding:
    layers = {run.name(number).rpartition(".")[0] for number in ids if "." in run.name(number)}
    part = (
        re.search(rf"\b{re.escape(attribute)}((\.\d+)+)$", next(iter(layers))) if len(layers) == 1 else None
    )
    if part is not None:  # one layer of a sequence: net[5]
        attribute += part[1].replace(".", "][")[1:] + "]"
    return RULE.say(
        frame,
        texts.NOT_REACHED,
        fix=fix,
        severity=severity,
        count=run.log.steps,
        about=ids,
        attribute=attribute,
        how=how,
        names=run.names(ids),
        steps=run.log.steps,
        advice=advice
        or f"Use `{attribute}` in the forward pass and in the loss that is back-propagated, or remove the layer.",
    )


RULE = Rule("GG401", "unreached-parameter", "warning", __doc__ or "", _judge)
