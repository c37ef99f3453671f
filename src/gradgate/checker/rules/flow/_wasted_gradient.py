"""The script computes gradients that no optimizer uses.

## What it does
Looks for parameters that losses reach but no optimizer updates: a teacher, a target network, a feature extractor
that was not frozen, a group with a learning rate of 0, or the other network of a GAN. Estimates how much memory the
gradients take, and what share of each step's computation.

## Why is this bad?
The gradients cost time in each backward pass, and the activations for them cost memory. Gradients that are never
cleared keep growing.

## Example
    next_value = target_network(next_state).max(1).values     # a graph through the target network

## Use instead
    with torch.no_grad():
        next_value = target_network(next_state).max(1).values

or ``network.requires_grad_(False)`` if gradients must pass through it to other parameters.

## Known limits
The memory estimate covers only the gradients, not the activations that the graph keeps for them. The finding is a
note, or a warning if the gradients are never cleared. The rule can't always tell whether a network was forgotten or
is fixed on purpose. If the network isn't a copy, isn't written to and isn't in evaluation mode, the finding is at
the optimizer, and the advice first offers to add the network to it.

For another optimizer's network, such as the other network of a GAN, the note gives the share of a step's
floating-point operations (FLOPs) that these gradients take. If the share is below 5%, there is no note. The share
counts forward and backward passes, from the shapes in the graphs of the first steps. It leaves out forward passes
without a graph and the optimizer's own arithmetic, and time is not exactly proportional to FLOPs.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import partial

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._left_out import left_out
from gradgate.checker.analysis._parameter_usage import cleared_unused
from gradgate.checker.analysis._queries import calling_line
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import last_name, own_nodes
from gradgate.checker.analysis._source import function_at, inside, nodes_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.checker.rules.flow._graph_fixes import detached
from gradgate.checker.rules.flow._in_no_optimizer import (
    WHY,
    bytes_of,
    networks,
    of_module,
    size,
    turned_off,
    uses,
    whole_module,
)
from gradgate.events import Backward, Differentiated, Frame, Ids, Site, Stepped

_LEAST_SHARE = 0.05  # share of a step's FLOPs: a smaller share is not worth a note


def _judge(run: Run) -> Iterator[Finding]:
    for left in left_out(run):
        if not left.forgotten:
            yield of_module(run, left, RULE)
    yield from _of_others(run)
    yield from _of_idle_groups(run)


def _of_others(run: Run) -> Iterator[Finding]:
    """Yield gradients that a loss adds to another optimizer's parameters and that no step uses."""
    wasted: dict[tuple[Site, frozenset[int]], set[int]] = defaultdict(set)
    used: dict[Site, set[int]] = defaultdict(set)
    for number, several in run.by_backward.items():
        if number < 0 or run.backward(number).closure:
            continue
        site = run.backward(number).site
        for each in several:
            owners = run.optimizers_of(each.atom)
            if each.consumed or each.touched:
                used[site] |= each.atom
            elif any(run.stepping[owner] for owner in owners):
                wasted[site, owners] |= each.atom
    # Without gradients that the script combines by hand (gradient surgery)
    by_hand = union(each.atom for each in run.contributions if each.backward < 0 and each.consumed)
    stepped = union(event.used for event in run.of(Stepped)) - by_hand
    times = Counter(event.site for event in run.of(Backward))
    networks: dict[tuple[frozenset[int], bool], dict[Site, Ids]] = defaultdict(dict)
    # reported by ineffective-step and param-not-in-optimizer
    never = union(cleared_unused(run).values()) | union(left.ids for left in left_out(run))
    for (site, owners), numbers in wasted.items():
        ids = frozenset(numbers - used[site])
        if not used[site] or not ids or not ids <= stepped or ids & never or times[site] <= 2:
            continue
        here = [each for each in run.contributions if each.backward >= 0 and each.atom & ids]
        grows = all(each.cleared is None for each in here if run.events[each.backward].site == site)
        networks[owners, grows][site] = ids
    for (
        owners,
        grows,
    ), lines in networks.items():  # one finding for each network, even if several losses reach it
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
            f"{run.names(ids)}. No step uses them{', and nothing clears them' if grows else ''}{_of_step(share)}.",
            why=WHY,
            advice=advice,
            fix=fix,
            severity="warning" if grows else None,
            count=calls,
            evidence={"parameters": len(ids), "bytes": bytes_of(run, ids), "share": share},
            about=ids,
        )


def _share(run: Run, owners: frozenset[int], lines: Collection[Site]) -> float | None:
    """Return the share of all steps' FLOPs that these lines spend only on these optimizers' parameters."""
    total = wasted = 0.0
    for line, events in grouped((event.site, event) for event in run.of(Backward)).items():
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
    """Return the advice and edit that keep a line's loss from reaching another optimizer's parameters."""
    events = run.calls_at(site)
    own, others = whole_module(run, used), networks(run, ids, used, site)
    off = turned_off(others)
    inputs = not used & run.owned
    if inputs or any(event.beyond & ids for event in events):
        # The trained module comes before the other module, such as a generator before its discriminator.
        through = "the input" if inputs else own or "the trained part"
        return f"{off} Do not detach here: the gradients of {through} flow through it.", ()
    if any(event.beyond & used for event in events):
        names = run.words(used)
        differentiated = any(each.behind & ids for each in run.of(Differentiated))
        if differentiated or _retains_gradients(site):
            return (
                f"Make the output of {whole_module(run, ids) or 'the network'} a new leaf, whose gradient "
                f"{'autograd.grad' if differentiated else 'backward()'} can still compute: "
                "output.detach().requires_grad_(). This loss trains nothing before this point."
            ), ()
        return (
            f"Detach the output of {' and '.join(others) or 'the network'} before {own or 'the trained part'} "
            "uses it: this loss trains nothing before this point."
        ), partial(_detached, names=names, until=innermost(site))
    numbers = [number for number in run.by_backward if number >= 0 and run.events[number].site == site]
    apart = any(term.reach and term.reach <= ids for number in numbers for term in run.terms(number))
    return (f"Remove the network's term from this loss, or {off[0].lower()}{off[1:]}" if apart else off), ()


def _retains_gradients(site: Site) -> bool:
    """Return whether a function at these lines asks for the gradient of a value that is no leaf."""
    nodes = (node for frame in site for node in own_nodes(function_at(frame)))
    return any(isinstance(node, ast.Attribute) and node.attr == "retain_grad" for node in nodes)


def _of_idle_groups(run: Run) -> Iterator[Finding]:
    """Yield the optimizer groups whose learning rate was 0 in every step while other groups had a positive rate."""
    for optimizer, events in run.made.items():
        steps = [run.stepped(number) for number in run.steps(optimizer)]
        for place, group in enumerate(events[-1].groups):
            rates = [step.lr[place] for step in steps if place < len(step.lr)]
            ids = group.parameters & run.reached
            if len(rates) < 3 or any(rates) or not ids or not any(any(step.lr) for step in steps):
                continue
            made = events[-1].site
            yield RULE.finding(
                _zero_rate(made, run.words(ids)) or made,
                f"{run.names(ids)} {'are' if len(ids) > 1 else 'is'} in a group of {run.optimizer(optimizer)} with "
                f"learning rate 0: each of {len(steps)} steps computes gradients of {size(run, ids)} "
                "(estimated) that have no effect.",
                why=WHY,
                advice="Turn the gradients off with requires_grad_(False), and leave the parameters out of the "
                "optimizer.",
                count=len(steps),
                evidence={"parameters": len(ids), "bytes": bytes_of(run, ids)},
            )


def _zero_rate(site: Site, parts: set[str]) -> Frame | None:
    """Return the line of a dict that maps "lr", or a part of the parameters' names, to a learning rate of 0."""
    for file in {frame.file for frame in site}:
        for node in nodes_of([file]):
            for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                named = getattr(key, "value", None) in ("lr", *parts)
                if named and getattr(value, "value", None) == 0:
                    return Frame(file, value.lineno, "")
    return None


def _detached(at: Statement, names: set[str], until: Frame) -> Fix:
    """Detach an assigned value where a trained network gets it, if only one call before the backward uses it."""
    target = at.node.targets[0] if isinstance(at.node, ast.Assign) else None
    if not isinstance(target, ast.Name) or until.file != at.file:
        return ()
    between = [node for node in at.block if at.line < node.lineno < until.line]
    calls = [
        call for call in inside(ast.Call, *between) if last_name(call.func) in names and not call.keywords
    ]
    return detached([call for call in calls if list(map(ast.unparse, call.args)) == [target.id]])


RULE = Rule("GG405", "wasted-gradient", "info", __doc__ or "", _judge)
