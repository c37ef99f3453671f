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
        for whole, called in _parts(log, held.get(optimizer, ())) if len(several) >= _LEAST else ():
            ids = frozenset(number for number in whole if log.parameters[number].trainable)
            if whole & reported:
                continue
            if any(event.moved & whole for event in several):
                if len(late) < _LEAST or any((e.moved | e.changed) & whole for e in late):
                    continue
                shown = called or _names(log, whole)
                yield f"{shown} moved at first, and not in the last {len(late)} steps of {name}."
            elif ids and all(log.parameters[number].still for number in ids):
                yield f"None of {counted(len(several), 'step')} of {name} moved {called or _names(log, ids)}."
            else:
                continue
            reported |= whole


def _parts(log: Log, groups: Sequence[Ids]) -> Iterator[tuple[Ids, str]]:
    """Yield what an optimizer holds: all, each group, each network, and each module within one, with its name."""
    groups = [frozenset(number for number in ids if number in log.parameters) for ids in groups]
    held = frozenset[int]().union(*groups)
    by_root: dict[str, set[int]] = defaultdict(set)
    by_path: dict[str, set[int]] = defaultdict(set)
    for number in held:
        by_root[_root(log, number)].add(number)
        parts = log.parameters[number].name.split(".")
        for length in range(2, max(len(parts), 3)):
            by_path[".".join(parts[:length])].add(number)
    for ids in (held, *groups, *map(frozenset, by_root.values())):
        if ids:
            yield ids, ""
    for path in sorted(by_path, key=lambda path: path.count(".")):
        yield frozenset(by_path[path]), path


def _root(log: Log, number: int) -> str:
    return log.parameters[number].root.partition("[")[0]


def _names(log: Log, ids: Ids) -> str:
    roots = {_root(log, number) for number in ids}
    if len(ids) > 1 and "" not in roots:
        return f"{', '.join(sorted(roots))} ({counted(len(ids), 'tensor')})"
    return ", ".join(log.parameters[number].name or "a parameter" for number in sorted(ids)[:3])
