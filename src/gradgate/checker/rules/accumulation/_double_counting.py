"""A term of the loss counts twice.

## What it does
Tracks every node of a loss's graph. Reports a term that the loss adds twice, a loss that is back-propagated alone
and again as a part of another loss in the same window, and an L2 penalty on parameters to which the optimizer also
applies weight decay.

## Why is this bad?
The term has twice the weight written in the code, which changes the balance of the losses.

## Example
    aux.backward(retain_graph=True)
    (main + aux).backward()

## Use instead
    (main + aux).backward()

## Known limits
A term that is computed again for each use isn't recognized as the same term. A term that is added n times and
divided by n is an average and counts once, unless this is the division that averages the window's micro-batches.

## Sources
docs/several_losses.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import accumulation as texts
from gradgate.events import Backward, OptimizerMade, Site, Term


def _judge(run: Run) -> Iterator[Finding]:
    yield from _added_twice(run)
    yield from _propagated_twice(run)
    yield from _decayed_twice(run)


def _added_twice(run: Run) -> Iterator[Finding]:
    sizes: Counter[Site] = Counter()  # micro-batches of the largest window
    for window in run.windows:
        sizes |= Counter(run.events[number].site for number in window.micro)
    found = grouped(
        (event.site, term)
        for event in run.of(Backward)
        for term in event.terms
        if term.paths > 1 and term.kind != "constant" and term.key >= 0
        if not _is_average(term, max(1, sizes[event.site]))
    )
    for site, terms in found.items():
        if len(terms) > 1:
            term, line = terms[0], innermost(terms[0].site).line
            where = term.joined or site
            yield RULE.say(where, texts.ADDED_TWICE, count=len(terms), term_line=line, times=term.paths)


def _is_average(term: Term, size: int) -> bool:
    """Return whether a term added n times is also divided by n, not counting the division by the window's size."""
    weights = [1 / number if op == "div" else number for op, number, _ in term.factors if number]
    of_window = next((weight for weight in weights if abs(weight * size - 1) < 1e-6), None)
    if of_window is not None and size > 1:
        weights.remove(of_window)
    return any(abs(weight * term.times * by - 1) < 1e-6 for weight in weights for by in (1, size))


def _propagated_twice(run: Run) -> Iterator[Finding]:
    hits: Counter[tuple[Site, Site]] = Counter()
    for window in run.windows:
        first: dict[int, int] = {}  # term: the first backward call that includes it
        terms = [(number, term) for number in window.micro for term in run.backward(number).terms]
        again = {
            (first[term.key], number)
            for number, term in terms
            if term.key >= 0 and term.kind != "constant" and first.setdefault(term.key, number) != number
        }
        together = [pair for pair in again if _used_together(run, *pair, window.step)]
        hits.update({(run.events[alone].site, run.events[within].site) for alone, within in together})
    reported: set[Site] = set()
    for (alone, within), count in hits.most_common():
        if count < 2 or alone in reported:
            continue
        reported.add(alone)
        line, same = innermost(within).line, innermost(within) == innermost(alone)
        yield RULE.say(
            alone,
            texts.PROPAGATED_TWICE,
            count=count,
            again_in_line=line,
            again="twice at this line" if same else f"here, and again as a part of the loss of line {line}",
        )


def _used_together(run: Run, first: int, second: int, step: int) -> bool:
    """Return whether two backward calls added gradients to the same parameters for the same step."""
    atoms = {part.atom for part in run.by_backward[first] if step in part.consumed and not part.touched}
    return any(part.atom in atoms and step in part.consumed for part in run.by_backward[second])


def _decayed_twice(run: Run) -> Iterator[Finding]:
    groups = [
        (made, group) for made in run.of(OptimizerMade) for group in made.groups if group.weight_decay > 0
    ]
    penalized = {event.site: event for event in run.of(Backward) if any(term.squares for term in event.terms)}
    for event in penalized.values():
        penalties = [term for term in event.terms if term.squares]
        squared = frozenset().union(*(term.squares for term in penalties))
        for made, group in [pair for pair in groups if pair[1].parameters & squared][:1]:
            yield RULE.say(
                made.site,
                texts.DECAYED_TWICE,
                severity="warning",
                parameters=len(group.parameters & squared),
                term_line=innermost(penalties[0].site).line,
                optimizer=run.optimizer(made.optimizer),
                weight_decay=group.weight_decay,
            )


RULE = Rule("GG105", "double-counting", "error", __doc__ or "", _judge)
