"""Gradients are computed that no optimizer uses.

## What it does
Looks for parameters that losses reach while no optimizer steps them: a teacher, a target network, a feature
extractor that was not frozen, a group with a learning rate of 0, or the other network of a GAN. Estimates how much
memory their gradients take, and how much of each step.

## Why is this bad?
They cost time in each backward pass, and memory for the activations that it needs. Gradients that are never
cleared keep growing.

## Example
    next_value = target_network(next_state).max(1).values     # a graph through the target network

## Use instead
    with torch.no_grad():
        next_value = target_network(next_state).max(1).values

or ``network.requires_grad_(False)`` if gradients have to pass through it to other parameters.

## Known limits
The estimate of memory covers only the gradients, not the activations that the graph keeps for them. It is a note,
and a warning only if the gradients are never cleared.

For another optimizer's network, such as the other one of a GAN, the note says which part of a step's floating-point
operations (FLOPs) these gradients take. Below 5 % there is no note. Both passes are counted, from the shapes in the
graphs of the first steps. Forward passes without a graph and the optimizer's own arithmetic are left out, and time
does not follow FLOPs exactly.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import partial

from gradgate.checker.analysis._left_out import left_out
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import nodes_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.analysis._usage_lines import calling_line
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import FixAt, Rule
from gradgate.checker.rules.flow._freezing import whole_module
from gradgate.checker.rules.flow._in_no_optimizer import WHY, bytes_of, of_module, size, uses
from gradgate.events import Backward, Frame, Ids, Site, Stepped

_LEAST_SHARE = 0.05  # of a step's FLOPs: less is not worth a note


def _judge(run: Run) -> Iterator[Finding]:
    for left in left_out(run):
        if not left.forgotten:
            yield of_module(run, left, RULE)
    yield from _of_others(run)
    yield from _of_idle_groups(run)


def _of_others(run: Run) -> Iterator[Finding]:
    """Yield gradients that a loss adds to another optimizer's parameters, which are cleared before it steps."""
    wasted: dict[tuple[Site, frozenset[int]], set[int]] = defaultdict(set)
    used: dict[Site, set[int]] = defaultdict(set)
    for number, several in run.by_backward.items():
        if number < 0 or run.backward(number).closure:
            continue
        site = run.backward(number).site
        for each in several:
            owners = frozenset().union(*(run.owners.get(parameter, set()) for parameter in each.atom))
            if each.consumed or each.touched:
                used[site] |= each.atom
            elif any(run.stepping[owner] for owner in owners):
                wasted[site, owners] |= each.atom
    stepped: Ids = frozenset().union(*(event.used for event in run.of(Stepped)))
    by_hand = (each.atom for each in run.contributions if each.backward < 0 and each.consumed)
    stepped = stepped.difference(*by_hand)  # read and put together by hand: gradient surgery
    times = Counter(event.site for event in run.of(Backward))
    networks: dict[tuple[frozenset[int], bool], dict[Site, Ids]] = defaultdict(dict)
    for (site, owners), numbers in wasted.items():
        ids = frozenset(numbers - used[site])
        if not used[site] or not ids & stepped or times[site] <= 2:
            continue
        here = [each for each in run.contributions if each.backward >= 0 and each.atom & ids]
        grows = all(each.cleared is None for each in here if run.events[each.backward].site == site)
        networks[owners, grows][site] = ids
    for (owners, grows), lines in networks.items():  # one for each network, however many losses reach it
        site = max(lines, key=lambda line: times[line])
        ids = lines[site]
        whole = all(not run.owners.get(number, set()) <= owners for line in lines for number in used[line])
        share = _share(run, owners, lines) if whole else None
        if share is not None and share < _LEAST_SHARE and not grows:
            continue
        advice, fix = _apart(run, ids, frozenset(used[site]), site)
        calls = sum(times[line] for line in lines)
        yield RULE.finding(
            calling_line(uses(run, ids, site), site) or site,
            f"{calls} backward calls also compute gradients of {size(run, ids)} (estimated) for "
            f"{run.names(ids)}, which no step uses{', and nothing clears' if grows else ''}{_of_step(share)}.",
            why=WHY,
            advice=advice,
            fix=fix,
            severity="warning" if grows else None,
            count=calls,
            evidence={"parameters": len(ids), "bytes": bytes_of(run, ids), "share": share},
            about=ids,
        )


def _share(run: Run, owners: frozenset[int], lines: Collection[Site]) -> float | None:
    """Return how much of the FLOPs of all steps these lines spend on these optimizers' parameters alone."""
    by_line: dict[Site, list[Backward]] = defaultdict(list)
    for event in run.of(Backward):
        by_line[event.site].append(event)
    total = wasted = 0.0
    for line, events in by_line.items():
        counted = [event for event in events if event.flops]
        if not counted:
            return None
        calls = len(events) / len(counted)
        total += calls * sum(event.flops for event in counted)
        if line in lines:
            parts = [part for event in counted for part in event.serving]
            wasted += calls * sum(flops for optimizers, flops in parts if optimizers and optimizers <= owners)
    return wasted / total


def _of_step(share: float | None) -> str:
    return "" if share is None or share < _LEAST_SHARE else f": about {share:.0%} of each step's FLOPs"


def _apart(run: Run, ids: Ids, used: Ids, site: Site) -> tuple[str, Fix | FixAt]:
    """Return how to keep a line's loss from reaching another optimizer's parameters, given the graph's order."""
    events = [event for event in run.of(Backward) if event.site == site]
    network, own = whole_module(run, ids), whole_module(run, used)
    if any(event.beyond & ids for event in events):
        # The trained module comes before the other one, as a generator comes before its discriminator.
        name = network or "the network"
        return (
            f"Turn its own gradients off while this loss is computed: {name}.requires_grad_(False) before the "
            f"forward pass, {name}.requires_grad_(True) after backward(). Do not detach here: "
            f"{own or 'what this loss trains'} gets its gradient through it."
        ), ()
    if any(event.beyond & used for event in events):
        names = {part for number in used for part in run.name(number).split(".")}
        return (
            f"Detach what {network or 'it'} computes where it enters {own or 'the trained part'}: this loss trains "
            "nothing before that."
        ), partial(_detached, names=names, until=innermost(site))
    return "Leave its term out of this loss, or freeze it meanwhile: requires_grad_(False).", ()


def _of_idle_groups(run: Run) -> Iterator[Finding]:
    """Yield the optimizer groups whose learning rate was 0 in every step while other groups had a positive rate."""
    for optimizer, events in run.made.items():
        steps = [event for event in run.of(Stepped) if event.optimizer == optimizer]
        for place, group in enumerate(events[-1].groups):
            rates = [step.lr[place] for step in steps if place < len(step.lr)]
            ids = group.parameters & run.reached
            if len(rates) < 3 or any(rates) or not ids or not any(any(step.lr) for step in steps):
                continue
            made = events[-1].site
            yield RULE.finding(
                _zero_rate(made, {part for number in ids for part in run.name(number).split(".")}) or made,
                f"{run.names(ids)} {'are' if len(ids) > 1 else 'is'} in a group of {run.optimizer(optimizer)} with "
                f"learning rate 0: each of {len(steps)} steps computes gradients of {size(run, ids)} "
                "(estimated) that update nothing.",
                why=WHY,
                advice="Turn their gradients off: requires_grad_(False), and leave them out of the optimizer.",
                count=len(steps),
                evidence={"parameters": len(ids), "bytes": bytes_of(run, ids)},
            )


def _zero_rate(site: Site, parts: set[str]) -> Frame | None:
    """Return the line that sets a group's rate to 0, under "lr" or under a part of its parameters' names."""
    for file in {frame.file for frame in site}:
        for node in nodes_of([file]):
            pairs: list[tuple[object, ast.expr]] = []
            if isinstance(node, ast.Dict):
                pairs = [
                    (getattr(key, "value", None), value)
                    for key, value in zip(node.keys, node.values, strict=True)
                ]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                key = getattr(node.targets[0].slice, "value", None)
                pairs = [(key, node.value)] if key == "lr" else []
            for key, value in pairs:
                if key in ("lr", *parts) and getattr(value, "value", None) == 0:
                    return Frame(file, value.lineno, "")
    return None


def _detached(at: Statement, names: set[str], until: Frame) -> Fix:
    """Detach an assigned value where a trained network takes it, if only one call does so before the backward."""
    target = at.node.targets[0] if isinstance(at.node, ast.Assign) else None
    if not isinstance(target, ast.Name) or until.file != at.file:
        return ()
    given = [
        (node.lineno, call)
        for node in at.block
        if at.line < node.lineno < until.line
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and last_name(call.func) in names
        if len(call.args) == 1 and not call.keywords and ast.unparse(call.args[0]) == target.id
    ]
    if len(given) != 1:
        return ()
    line, call = given[0]
    function = ast.unparse(call.func)
    return (Replace(line, f"{function}({target.id})", f"{function}({target.id}.detach())"),)


RULE = Rule("GG405", "wasted-gradient", "info", __doc__ or "", _judge)
