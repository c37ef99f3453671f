"""The script computes gradients that no optimizer uses.

## What it does
Looks for parameters that losses reach but no optimizer updates: a teacher, a target network, a feature extractor
that was not frozen, or the other network of a GAN. Estimates how much memory the gradients take.

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
note: the rule can't tell whether a network was forgotten or is fixed on purpose.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._lives import unheld
from gradgate.checker.analysis._queries import calling_line, whole_module
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule, Text
from gradgate.checker.rules.texts import flow_waste as texts
from gradgate.events import Ids, Site, Stepped

_LEAST = 3  # calls of a line: a gradient that is wasted once or twice costs nothing


def _judge(run: Run) -> Iterator[Finding]:
    for entry in unheld(run):
        if entry.why == "fixed":
            passes = any(event.beyond & entry.ids for event in run.calls_reaching(entry.ids))
            text = texts.PASSED_THROUGH if passes else texts.NOT_TRAINED
            yield _finding(run, entry.ids, entry.backward, len(run.calls_reaching(entry.ids)), text)
    for site, ids in _unused(run).items():
        yield _finding(run, ids, site, len(run.calls_at(site)), texts.OF_ANOTHER)


def _unused(run: Run) -> dict[Site, Ids]:
    """Return what each line's losses add to other optimizers' parameters although no step uses it."""
    wasted: dict[Site, set[int]] = defaultdict(set)
    used: dict[Site, set[int]] = defaultdict(set)
    for number, entries in run.by_backward.items():
        for entry in entries if number >= 0 and not run.backward(number).closure else ():
            site = run.backward(number).site
            if entry.consumed or entry.touched:
                used[site] |= entry.atom
            elif any(run.stepping[owner] for owner in run.optimizers_of(entry.atom)):
                wasted[site] |= entry.atom
    stepped = union(event.used for event in run.of(Stepped))
    times = Counter(run.backward(number).site for number in run.by_backward if number >= 0)
    return {
        site: frozenset(ids - used[site])
        for site, ids in wasted.items()
        if used[site] and ids - used[site] and ids - used[site] <= stepped and times[site] >= _LEAST
    }


def _finding(run: Run, ids: Ids, backward: Site, times: int, text: Text) -> Finding:
    uses = [
        site
        for event in run.calls_at(backward)
        for number, site in (*event.through, *event.uses)
        if number in ids and site
    ]
    return RULE.say(
        calling_line(uses, backward) or backward,
        text,
        count=times,
        about=ids,
        backwards=times,
        size=_size(sum(run.parameters[number].nbytes for number in ids)),
        names=run.names(ids),
        network=whole_module(run, ids) or "the network",
    )


def _size(nbytes: float) -> str:
    """Return a size in memory as text."""
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


RULE = Rule("GG405", "wasted-gradient", "info", __doc__ or "", _judge)
