"""Gradients are computed that nobody uses.

## What it does
Looks for parameters that losses reach while no optimizer steps them: a teacher, a target network, a feature
extractor that was not frozen; groups with a rate of 0; the other network of a GAN. Tells how much memory their
gradients take, as an estimate.

## Why is this bad?
They cost a part of each backward pass, and memory for what it needs. Those that nobody clears add up for ever.

## Example
    next_value = target_network(next_state).max(1).values     # a graph through the target network

## Use instead
    with torch.no_grad():
        next_value = target_network(next_state).max(1).values

or ``network.requires_grad_(False)`` where gradients have to pass through it to something else.

## Known limits
The estimate is of the gradients alone, not of what the graph keeps for them. It is a note, and a warning only where
the gradients are never cleared.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._parameter_usage import calling_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import own_nodes, scopes_of
from gradgate.checker.analysis._unused_gradients import idle_groups, left_out
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Ids, ModeSet, Site, Stepped

_WHY = "They take a part of each backward pass and memory, for nothing."
_NO_GRAPH = "Run it under torch.no_grad(), or switch its gradients off: requires_grad_(False)."


def _judge(run: Run) -> Iterator[Finding]:
    for left in left_out(run):
        if not left.forgotten:
            yield _of_module(run, left.ids, left.backward)
    yield from _of_others(run)
    for made, ids in idle_groups(run):
        if ids:
            times = sum(event.optimizer == made.optimizer for event in run.of(Stepped))
            yield RULE.finding(
                _zero_line(made.site, {part for one in ids for part in run.name(one).split(".")})
                or made.site,
                f"{run.names(ids)} {_are(ids)} in a group of {run.optimizer(made.optimizer)} with rate 0: "
                f"gradients of {_size(run, ids)} (estimated) are computed in each of {times} steps, and "
                "move nothing.",
                why=_WHY,
                advice="Switch their gradients off: requires_grad_(False), and leave them out of the optimizer.",
                count=times,
                evidence={"parameters": len(ids), "bytes": _bytes(run, ids)},
            )


def _of_module(run: Run, ids: Ids, backward: Site) -> Finding:
    several = [one for number in run.by_backward for one in run.by_backward[number] if one.atom & ids]
    grows = len(several) > 2 and all(one.cleared is None for one in several)
    times = sum(bool(event.reached & ids) for event in run.of(Backward))
    return RULE.finding(
        calling_line(_uses(run, ids, backward), backward) or backward,
        f"{times} backward calls compute gradients of {_size(run, ids)} (estimated) for {run.names(ids)}, which no "
        f"optimizer steps{'; nobody clears them, so that they add up' if grows else ''}.",
        why=_WHY,
        advice=_NO_GRAPH,
        severity="warning" if grows and not _evaluating(run, ids) else None,
        count=times,
        evidence={"parameters": len(ids), "bytes": _bytes(run, ids), "cleared": not grows},
    )


def _of_others(run: Run) -> Iterator[Finding]:
    """Yield what a line's losses add to parameters of another optimizer, which are cleared before it steps."""
    wasted: dict[tuple[Site, frozenset[int]], set[int]] = defaultdict(set)
    used: set[tuple[Site, int]] = set()
    for number, several in run.by_backward.items():
        if number < 0 or run.backward(number).closure:
            continue
        site = run.backward(number).site
        for one in several:
            owners = frozenset().union(*(run.owners.get(parameter, set()) for parameter in one.atom))
            if one.consumed or one.touched:
                used |= {(site, parameter) for parameter in one.atom}
            elif owners and any(run.stepping[owner] for owner in owners):
                wasted[site, owners] |= one.atom
    for (site, _), ids in wasted.items():
        left = frozenset(number for number in ids if (site, number) not in used)
        if left and any(at == site for at, _ in used):
            times = sum(event.site == site for event in run.of(Backward))
            here = [one for one in run.contributions if one.backward >= 0 and one.atom & left]
            here = [one for one in here if run.events[one.backward].site == site]
            grows = all(one.cleared is None for one in here)
            if times > 2 and left & frozenset().union(*(event.used for event in run.of(Stepped))):
                yield RULE.finding(
                    calling_line(_uses(run, left, site), site) or site,
                    f"{times} backward calls also compute gradients of {_size(run, left)} (estimated) for "
                    f"{run.names(left)}, which no step uses{', and nobody clears' if grows else ''}.",
                    why=_WHY,
                    advice="Detach what only the other loss needs: discriminator(fake.detach()), or switch the "
                    "gradients of the network off while it only passes them on.",
                    severity="warning" if grows else None,
                    count=times,
                    evidence={"parameters": len(left), "bytes": _bytes(run, left)},
                )


def _uses(run: Run, ids: Ids, backward: Site) -> list[Site]:
    """Return where parameters were used in the forward pass of a line's loss."""
    for event in run.of(Backward):
        if event.site == backward and event.reached & ids:
            found = [site for number, site in (*event.through, *event.uses) if number in ids and site]
            if found:
                return found
    return []


def _zero_line(site: Site, parts: set[str]) -> Frame | None:
    """Return the line that sets a group's rate to 0, under "lr" or under a part of its parameters' names."""
    for file in {frame.file for frame in site}:
        for scope in scopes_of(file):
            for node in own_nodes(scope.node):
                if isinstance(node, ast.Dict):
                    for key, value in zip(node.keys, node.values, strict=True):
                        if (
                            getattr(key, "value", None) in ("lr", *parts)
                            and getattr(value, "value", None) == 0
                        ):
                            return Frame(file, value.lineno, "")
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                rate = isinstance(target, ast.Subscript) and getattr(target.slice, "value", None) == "lr"
                if rate and isinstance(node, ast.Assign) and getattr(node.value, "value", None) == 0:
                    return Frame(file, node.lineno, "")
    return None


def _are(ids: Ids) -> str:
    return "are" if len(ids) > 1 else "is"


def _bytes(run: Run, ids: Ids) -> int:
    return sum(run.parameters[number].nbytes for number in ids if number in run.parameters)


def _size(run: Run, ids: Ids) -> str:
    size = float(_bytes(run, ids))
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _evaluating(run: Run, ids: Ids) -> bool:
    """Say whether a network was put into evaluation mode for good: it is used as it is, at some cost."""
    modes = [event.training for event in run.of(ModeSet) if event.parameters & ids]
    return bool(modes) and not any(modes)


RULE = Rule("GG405", "wasted-gradient", "info", __doc__ or "", _judge)
