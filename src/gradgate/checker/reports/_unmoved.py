"""Parameters that optimizers step without moving them. A report that is otherwise clean has to name them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.reports._words import counted
from gradgate.events import Ids, Log, OptimizerMade, Stepped

_LEAST = 3  # sampled steps, with a rate above zero
_LATE = 3  # the last third of them shows whether a parameter has stopped moving


def unmoved(log: Log) -> Iterator[str]:
    """Yield a sentence for each optimizer, group or network of trainable parameters that no step of a run moved.

    Parameters that moved at first, but not in the last third of the sampled steps, get one too.
    """
    steps: dict[int, list[Stepped]] = defaultdict(list)
    held: dict[int, list[Ids]] = {}
    for event in log.events:
        if isinstance(event, OptimizerMade):
            held[event.optimizer] = [group.parameters for group in event.groups]
        elif isinstance(event, Stepped) and event.seen and any(event.lr):
            steps[event.optimizer].append(event)
    reported: set[int] = set()
    for optimizer, several in steps.items():
        name = log.optimizers.get(optimizer) or "optimizer"
        late = several[len(several) - len(several) // _LATE :]
        for ids in _parts(log, held.get(optimizer, ())) if len(several) >= _LEAST else ():
            if ids & reported:
                continue
            ever = any(event.moved & ids for event in several)
            still = all(log.parameters[number].still for number in ids)
            if not ever and still:
                yield f"None of {counted(len(several), 'step')} of {name} moved {_names(log, ids)}."
            elif ever and len(late) >= _LEAST and not any((e.moved | e.changed) & ids for e in late):
                yield f"{_names(log, ids)} moved at first, and not in the last {len(late)} steps of {name}."
            else:
                continue
            reported |= ids


def _parts(log: Log, groups: Sequence[Ids]) -> Iterator[Ids]:
    """Yield the trainable parameters of an optimizer: all, those of each group, and those of each network."""
    known = log.parameters
    trained = [frozenset(n for n in ids if n in known and known[n].trainable) for ids in groups]
    by_root: dict[str, set[int]] = defaultdict(set)
    for number in frozenset[int]().union(*trained):
        by_root[_root(log, number)].add(number)
    for ids in (frozenset[int]().union(*trained), *trained, *map(frozenset, by_root.values())):
        if ids:
            yield ids


def _root(log: Log, number: int) -> str:
    return log.parameters[number].root.partition("[")[0]


def _names(log: Log, ids: Ids) -> str:
    roots = {_root(log, number) for number in ids}
    if len(ids) > 1 and "" not in roots:
        return f"{', '.join(sorted(roots))} ({counted(len(ids), 'tensor')})"
    return ", ".join(log.parameters[number].name or "a parameter" for number in sorted(ids)[:3])
