"""Parameters that optimizers step without moving them. A report that is otherwise clean has to name them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.reports._words import counted
from gradgate.events import Backward, Ids, Log, OptimizerMade, Stepped

_LEAST = 3  # sampled steps, with a rate above zero
_LATE = 3  # the last third of them shows whether a parameter has stopped moving
_NETWORK = 4  # tensors; a network of fewer may have the shapes of another one by chance


def unmoved(log: Log) -> Iterator[str]:
    """Yield a sentence for each optimizer, group or network of trainable parameters that no step of a run moved.

    Parameters that moved at first, but not in the last third of the sampled steps, get one too, and networks that
    something else overwrites after each step.
    """
    steps: dict[int, list[Stepped]] = defaultdict(list)
    held: dict[int, list[Ids]] = {}
    lost: set[int] = set()  # a loss reached them, and now they are frozen
    for event in log.events:
        if isinstance(event, OptimizerMade):
            held[event.optimizer] = [group.parameters for group in event.groups]
        elif isinstance(event, Backward) and event.seen:
            lost |= event.reached
        elif isinstance(event, Stepped) and event.seen and any(event.lr):
            steps[event.optimizer].append(event)
    lost = {number for number in lost if not log.parameters[number].trainable}
    lost -= {number for several in steps.values() for event in several for number in event.moved}
    reported: set[int] = set()
    for optimizer, several in steps.items():
        name = log.optimizers.get(optimizer) or "optimizer"
        everything = frozenset[int]().union(*held.get(optimizer, ()))
        late = several[len(several) - len(several) // _LATE :]
        for whole, called in _parts(log, held.get(optimizer, ())) if len(several) >= _LEAST else ():
            ids = frozenset(number for number in whole if log.parameters[number].trainable)
            if whole & reported:
                continue
            shown = called or _names(log, whole)
            none = f"None of {counted(len(several), 'step')} of {name} moved"
            if any(event.moved & whole for event in several):
                if len(late) < _LEAST or any((e.moved | e.changed) & whole for e in late):
                    continue
                yield (
                    f"{shown} moved at first, but not in the last {len(late)} steps of {name}. See whether it is "
                    "meant to stop."
                )
            elif ids and all(log.parameters[number].still for number in ids):
                yield f"{none} {called or _names(log, ids)}. See whether a loss uses it."
            elif whole <= lost:
                yield (
                    f"{none} {shown}: a loss reached it, and then it was frozen. See whether the network that you "
                    "freeze is this one."
                )
            elif ids == everything and all(event.used and event.used <= event.zero for event in several):
                yield f"{none} {shown}: every gradient was zero. See what the gradients are computed from."
            else:
                continue
            reported |= whole
        yield from _overwritten(log, name, list(_parts(log, held.get(optimizer, ()))), late)


def _overwritten(
    log: Log, name: str, parts: Sequence[tuple[Ids, str]], late: Sequence[Stepped]
) -> Iterator[str]:
    """Yield a sentence for a network that is an average of another one and is stepped all the same."""
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
                f"{name} steps {shown or _names(log, ids)}, and something else writes to it after each step. If it "
                f"is an average of {source}, leave it out of {name}, and run it under no_grad."
            )


def _shapes(log: Log, ids: Ids) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(log.parameters[number].shape for number in ids))


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
