"""A term of the loss compares a value with itself.

## What it does
Looks for distances (``mse_loss``, ``smooth_l1_loss``, ``huber_loss``, a power or absolute value of a difference)
whose two sides were equal, element by element, in each backward call: a target that is made of the output it is
compared with, a teacher that is the student, two views that no augmentation has made different. Also looks for
ratios, and distances inside a term, whose two sides are equal and both carry gradient: PPO's ratio with the new
log-probability in place of the old, a triplet loss of an example with itself.

## Why is this bad?
The term is zero and so is its gradient. Next to other terms this is easy to miss: the loss falls, and the term
trains nothing.

## Example
    logits = student(x)
    with torch.no_grad():
        target = student(x)                      # meant was teacher(x)
    loss = F.cross_entropy(logits, y) + 10 * F.mse_loss(logits, target)

## Use instead
        target = teacher(x)

## Known limits
A term is reported from the fifth backward call on, a part of one from the third, if the sides were equal in all of
them. Divergences (``kl_div``, a cross entropy with the model's own predictions) are not compared. A target that is
computed from the input is not seen: an autoencoder's is, too.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Combined, Ids, Site, Stepped

_LEAST = 5  # backward calls
_READ = 3  # backward calls whose graphs are read for this


def _judge(run: Run) -> Iterator[Finding]:
    equal: dict[Site, list[bool]] = defaultdict(list)
    reached: dict[Site, Ids] = defaultdict(frozenset)
    for event in run.of(Backward):
        for term in event.terms if event.reached & run.owned else ():
            equal[term.site].append(term.equal)
            reached[term.site] |= event.reached
    whole: set[Site] = set()  # the lines of terms that are one comparison
    for site, calls in equal.items():
        if site and len(calls) >= _LEAST and all(calls):
            whole.add(site)
            yield RULE.finding(
                site,
                f"This term compares two values that are equal, in each of {len(calls)} backward calls.",
                why="The term is 0 and has no gradient: it trains nothing.",
                advice="Compare with another value: the labels, another model's output, another view of the data.",
                count=len(calls),
                evidence={"backwards": len(calls)},
                about=reached[site],
            )
    yield from _parts(run, whole)


def _parts(run: Run, whole: set[Site]) -> Iterator[Finding]:
    """Report ratios, such as that of PPO, and distances inside a term whose two sides are equal and attached."""
    found: dict[Site, dict[int, Combined]] = defaultdict(dict)
    for number, event in run.numbered(Combined):
        if isinstance(event, Combined) and event.how == "itself" and event.parameters & run.owned:
            found[event.site][number] = event
    for site, events in found.items():
        first = events[min(events)]
        calls = [event for event in run.of(Backward) if event.site == first.backward]
        read = max(_READ, sum(bool(event.uses) for event in calls))
        between = [event for event in run.events[min(events) : max(events)] if isinstance(event, Stepped)]
        # Two networks may be equal before their first step.
        changed = any(event.moved & first.parameters for event in between)
        if site and site not in whole and changed and len(events) >= read:
            yield RULE.finding(
                site,
                "This line compares a value with itself: the difference is always 0, and a ratio 1.",
                why="Both sides carry gradient, and the two gradients cancel: the term trains nothing.",
                advice="Compare with another value. PPO stores the log-probability when it draws the sample.",
                count=len(calls),
                evidence={"backwards": len(calls)},
                about=first.parameters,
            )


RULE = Rule("GG408", "compared-with-itself", "error", __doc__ or "", _judge)
