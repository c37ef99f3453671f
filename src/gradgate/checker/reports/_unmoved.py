"""Notes about parameters that an optimizer steps but does not change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.reports._words import counted
from gradgate.events import Backward, Ids, Log, OptimizerMade, Stepped

_LEAST = 3  # sampled steps with a learning rate above zero
_LATE = 3  # a parameter has stopped moving if it doesn't move in the last 1/3 of the sampled steps
_NETWORK = 4  # networks with fewer tensors may have equal shapes by chance


def unmoved(log: Log) -> Iterator[str]:
    """Yield a sentence for each optimizer, parameter group or network that no step changed.

    Also yield sentences for parameters that changed at first, but not in the last third of the sampled steps, and
    for networks that the script overwrites after each step.
    """
    steps: dict[int, list[Stepped]] = defaultdict(list)
    held: dict[int, list[Ids]] = {}
    for event in log.events:
        if isinstance(event, OptimizerMade):
            held[event.optimizer] = [group.parameters for group in event.groups]
        elif isinstance(event, Stepped) and event.seen and any(event.lr):
            steps[event.optimizer].append(event)
    lost = _frozen_after_use(log) - {
        number for several in steps.values() for e in several for number in e.moved
    }
    reported: set[int] = set()
    for optimizer, several in steps.items():
        if len(several) < _LEAST:
            continue
        name = log.optimizers.get(optimizer) or "optimizer"
        parts = list(_parts(log, held.get(optimizer, ())))
        late = several[len(several) - len(several) // _LATE :]
        for number, (whole, called) in enumerate(parts):
            sentence = (
                None
                if whole & reported
                else _still(log, name, whole, called, several, late, lost, not number)
            )
            if sentence:
                reported |= whole
                yield sentence
        yield from _overwritten(log, name, parts, late)


def _frozen_after_use(log: Log) -> set[int]:
    """Return the parameters that a loss reached before they were frozen."""
    reached = {
        number
        for event in log.events
        if isinstance(event, Backward) and event.seen
        for number in event.reached
    }
    return {number for number in reached if not log.parameters[number].trainable}


def _still(
    log: Log,
    name: str,
    whole: Ids,
    called: str,
    several: Sequence[Stepped],
    late: Sequence[Stepped],
    lost: set[int],
    everything: bool,
) -> str | None:
    """Return a sentence about a part of an optimizer's parameters, if no step or no late step moves the part.

    Args:
        log: the log.
        name: the name of the optimizer.
        whole: the parameters of the part.
        called: the name of the part, if it is a module.
        several: the optimizer's sampled steps.
        late: the last third of ``several``.
        lost: the parameters that never moved and were frozen after a loss had reached them.
        everything: whether the part holds all parameters of the optimizer.
    """
    shown = called or _names(log, whole)
    if any(event.moved & whole for event in several):
        if len(late) < _LEAST or any((event.moved | event.changed) & whole for event in late):
            return None
        return (
            f"{shown} moved at first, but not in the last {len(late)} steps of {name}. Check whether this "
            "is intended."
        )
    none = f"None of {counted(len(several), 'step')} of {name} moved"
    ids = frozenset(number for number in whole if log.parameters[number].trainable)
    if ids and all(log.parameters[number].still for number in ids):
        return f"{none} {called or _names(log, ids)}. Check whether a loss uses it."
    if whole <= lost:
        return (
            f"{none} {shown}, which was frozen after a loss had reached it. Check whether the right network is "
            "frozen."
        )
    if everything and ids == whole and all(event.used and event.used <= event.zero for event in several):
        return f"{none} {shown}: every gradient was zero. Check how the loss depends on it."
    return None


def _overwritten(
    log: Log, name: str, parts: Sequence[tuple[Ids, str]], late: Sequence[Stepped]
) -> Iterator[str]:
    """Yield a sentence for a network that an optimizer steps although it is an average of another network."""
    if len(late) < _LEAST:
        return
    written = frozenset.intersection(*(event.changed & event.moved for event in late))
    kept = frozenset.intersection(*(event.moved - event.changed for event in late))
    sources = {_shapes(log, ids): shown or _names(log, ids) for ids, shown in parts if ids <= kept}
    reported: set[int] = set()
    for ids, shown in parts:
        source = sources.get(_shapes(log, ids))
        if source is not None and len(ids) >= _NETWORK and ids <= written and not ids & reported:
            reported |= ids
            yield (
                f"{name} steps {shown or _names(log, ids)}, and other code overwrites it after each step. If it is "
                f"an average of {source}, remove it from {name} and run it under no_grad."
            )


def _shapes(log: Log, ids: Ids) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(log.parameters[number].shape for number in ids))


def _parts(log: Log, groups: Sequence[Ids]) -> Iterator[tuple[Ids, str]]:
    """Yield an optimizer's parameters: all, by group, by network, and by module with the module's name."""
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
