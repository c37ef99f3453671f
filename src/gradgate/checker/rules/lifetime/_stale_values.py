"""A loss is computed from copies of parameters that were made before earlier steps.

## What it does
Looks in the graph of each loss for values that were computed from a parameter before the last two steps of its
optimizer: casts that ``torch.autocast`` keeps, or sums that the script computed once. Views of a parameter share
its memory and are not reported.

## Why is this bad?
Steps change the parameter, but not the copy. The forward pass uses the old values, so the loss ignores the steps.
Torch raises no error, because the backward pass of a cast or a sum needs no saved tensor.

## Example
    with torch.autocast("cuda"):            # keeps a cast of each weight until the block ends
        for x, y in loader:
            loss = loss_fn(model(x), y)     # always the first weights
            loss.backward()
            optimizer.step()

## Use instead
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

## Known limits
Copies made under ``no_grad`` are in no graph and are not seen. A ``clone()`` is not reported, because it may keep
the old values on purpose. A graph that ``retain_graph=True`` keeps is left to GG601. A copy that is one step old is
not reported, because some algorithms compute gradients with a delay.

## Sources
https://docs.pytorch.org/docs/stable/amp.html: autocast "should wrap only the forward pass(es) of your network".
``cache_enabled`` in the same document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._queries import shared_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import lifetime as texts
from gradgate.events import Backward, Site, StaleUsed

_CALLS = 2


def _judge(run: Run) -> Iterator[Finding]:
    places: dict[Site, list[StaleUsed]] = defaultdict(list)
    left_out = False
    older: dict[Site, int] = {}  # line -> old nodes of its last call
    for _, event in run.numbered(Backward, StaleUsed):
        if isinstance(event, Backward):
            # GG601 reports a graph that is kept, and one that grows because each value is computed from the last.
            left_out = event.retain or 0 < older.get(event.site, 0) < event.old_nodes
            older[event.site] = event.old_nodes
        elif isinstance(event, StaleUsed) and event.parameters & run.moved and event.made and not left_out:
            places[event.made].append(event)
    for made, events in places.items():
        if len(events) >= _CALLS:
            ids = frozenset().union(*(event.parameters for event in events)) & run.moved
            where = shared_line(made, events[-1].site) or made
            yield RULE.say(where, texts.OLD_VALUES, count=len(events), about=ids, parameters=run.names(ids))


RULE = Rule("GG603", "stale-values", "error", __doc__ or "", _judge)
