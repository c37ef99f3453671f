"""Notes about parameters that no optimizer step changes, or none in the last third of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.reports._summary import distinct_names
from gradgate.checker.reports._words import counted
from gradgate.events import Ids, Log, OptimizerMade, Stepped

_LEAST = 3  # sampled steps with a learning rate above zero
_LATE = 3  # a parameter has stopped moving if it doesn't move in the last 1/3 of the sampled steps


def unmoved(log: Log) -> Iterator[str]:
    """Yield a sentence for each network, module or parameter that no step changed, or none of the last steps."""
    steps: dict[int, list[Stepped]] = defaultdict(list)
    held: dict[int, set[int]] = {}
    for event in log.events:
        if isinstance(event, OptimizerMade):
            held[event.optimizer] = {number for group in event.groups for number in group.parameters}
        elif isinstance(event, Stepped) and event.seen and any(event.lr):
            steps[event.optimizer].append(event)
    names, reported = distinct_names(log), set[int]()
    for optimizer, sampled in steps.items():
        name, late = names.get(optimizer, "optimizer"), sampled[len(sampled) - len(sampled) // _LATE :]
        moved = frozenset[int]().union(*(event.moved for event in sampled))
        written = frozenset[int]().union(*(event.changed for event in sampled))  # by other code
        lately = frozenset[int]().union(*(event.moved | event.changed for event in late))
        for ids, called in _parts(log, held.get(optimizer, set())) if len(sampled) >= _LEAST else ():
            trainable = frozenset(number for number in ids if log.parameters[number].trainable)
            still = trainable and all(log.parameters[number].still for number in trainable)
            if ids & reported:
                continue
            if ids & moved and not ids & lately and len(late) >= _LEAST:
                yield (
                    f"{called or _names(log, ids)} moved at first, but not in the last {len(late)} steps of "
                    f"{name}. Check whether this is intended."
                )
            elif not ids & moved and still and not trainable <= written:
                yield (
                    f"None of {counted(len(sampled), 'step')} of {name} moved {called or _names(log, trainable)}. "
                    "Check whether a loss uses it."
                )
            else:
                continue
            reported |= ids


def _parts(log: Log, held: set[int]) -> Iterator[tuple[Ids, str]]:
    """Yield sets of an optimizer's parameters: all, each network, and each module or parameter with its name."""
    by_root: dict[str, set[int]] = defaultdict(set)
    by_path: dict[str, set[int]] = defaultdict(set)
    for number in held:
        if 0 in log.parameters[number].shape:
            continue
        by_root[_root(log, number)].add(number)
        parts = log.parameters[number].name.split(".")
        for length in range(2, max(len(parts), 3)):
            by_path[".".join(parts[:length])].add(number)
    for ids in (set().union(*by_root.values()), *by_root.values()):
        if ids:
            yield frozenset(ids), ""
    for path in sorted(by_path, key=lambda path: path.count(".")):
        yield frozenset(by_path[path]), path


def _root(log: Log, number: int) -> str:
    return log.parameters[number].root.partition("[")[0]


def _names(log: Log, ids: Ids) -> str:
    roots = {_root(log, number) for number in ids}
    if len(ids) > 1 and "" not in roots:
        return f"{', '.join(sorted(roots))} ({counted(len(ids), 'tensor')})"
    few = [log.parameters[number] for number in sorted(ids)[:3]]
    return ", ".join(parameter.name or f"its parameter of shape {list(parameter.shape)}" for parameter in few)
