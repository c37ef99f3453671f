"""Notes about parameters that no optimizer step changes, and about data that optimizer steps do change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gradgate.checker.analysis._origins import data_among
from gradgate.checker.analysis._run import enumerated
from gradgate.checker.reports._summary import distinct_names
from gradgate.checker.reports._words import counted
from gradgate.events import Backward, Ids, Log, OptimizerMade, Stepped

_LEAST = 3  # sampled steps with a learning rate above zero
_LATE = 3  # a parameter has stopped moving if it doesn't move in the last 1/3 of the sampled steps
_NETWORK = 4  # networks with fewer tensors may have equal shapes by chance


def unmoved(log: Log) -> Iterator[str]:
    """Yield a sentence for each optimizer, parameter group or network that no step changed.

    Also yield sentences for parameters that changed at first, but not in the last third of the sampled steps, for
    networks that the script overwrites after each step, and for data that an optimizer changes beside parameters.
    """
    steps: dict[int, list[Stepped]] = defaultdict(list)
    names = distinct_names(log)
    held: dict[int, list[Ids]] = {}
    reached: set[int] = set()
    moved: set[int] = set()
    for event in log.events:
        if isinstance(event, OptimizerMade):
            held[event.optimizer] = [group.parameters for group in event.groups]
        elif isinstance(event, Stepped) and event.seen and any(event.lr):
            steps[event.optimizer].append(event)
            moved |= event.moved
        elif isinstance(event, Backward) and event.seen:
            reached |= event.reached
    # Never moved, and frozen after a loss had reached them.
    lost = {number for number in reached - moved if not log.parameters[number].trainable}
    reported: set[int] = set()
    for optimizer, several in steps.items():
        if len(several) < _LEAST:
            continue
        name = names.get(optimizer, "optimizer")
        ids = frozenset[int]().union(*held.get(optimizer, ()))
        data = data_among(log, ids)
        if data and ids & moved - data.keys():
            tensors = enumerated([log.parameters[number].name for number in data])
            lines = enumerated([str(line) for line in sorted({frame.line for frame in data.values()})])
            yield (
                f"{name} changes {tensors}, which line{'s' * (' ' in lines)} {lines} converted from other values. "
                f"Remove data from the list that {name} gets."
            )
        parts = list(_parts(log, held.get(optimizer, ())))
        late = several[len(several) - len(several) // _LATE :]
        for number, (ids, called) in enumerate(parts):
            if ids & reported:
                continue
            if any(event.moved & ids for event in several):
                sentence = _stopped(log, name, ids, called, late)
            else:
                sentence = _still(log, name, ids, called, several, lost, everything=not number)
            if sentence:
                reported |= ids
                yield sentence
        yield from _overwritten(log, name, parts, late)


def _stopped(log: Log, name: str, ids: Ids, called: str, late: Sequence[Stepped]) -> str | None:
    """Return a sentence about parameters that no late step moves."""
    if len(late) < _LEAST or any((event.moved | event.changed) & ids for event in late):
        return None
    return (
        f"{called or _names(log, ids)} moved at first, but not in the last {len(late)} steps of {name}. Check "
        "whether this is intended."
    )


def _still(
    log: Log,
    name: str,
    ids: Ids,
    called: str,
    several: Sequence[Stepped],
    lost: set[int],
    *,
    everything: bool,
) -> str | None:
    """Return a sentence about parameters that no step moves. ``everything``: the optimizer holds no others."""
    none = f"None of {counted(len(several), 'step')} of {name} moved"
    trainable = frozenset(number for number in ids if log.parameters[number].trainable)
    if trainable and all(log.parameters[number].still for number in trainable):
        if trainable <= frozenset().union(*(event.changed for event in several)):
            return None  # other code writes it, such as a moving average
        return f"{none} {called or _names(log, trainable)}. Check whether a loss uses it."
    none = f"{none} {called or _names(log, ids)}"
    if ids <= lost:
        return f"{none}, which was frozen after a loss had reached it. Check whether the right network is frozen."
    if everything and ids == trainable and all(event.used and event.used <= event.zero for event in several):
        return f"{none}: every gradient was zero. Check how the loss depends on it."
    return None


def _overwritten(
    log: Log, name: str, parts: Sequence[tuple[Ids, str]], late: Sequence[Stepped]
) -> Iterator[str]:
    """Yield a sentence for a network that an optimizer updates although it is an average of another network."""
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
                f"{name} updates {shown or _names(log, ids)}, and other code overwrites it after each step. If it "
                f"is an average of {source}, remove it from {name} and run it under no_grad."
            )


def _shapes(log: Log, ids: Ids) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(log.parameters[number].shape for number in ids))


def _parts(log: Log, groups: Sequence[Ids]) -> Iterator[tuple[Ids, str]]:
    """Yield sets of an optimizer's parameters: all, each group, each network, and each module with its name."""
    moving = {number for number, each in log.parameters.items() if 0 not in each.shape}
    groups = [ids & moving for ids in groups]
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
    several = [log.parameters[number] for number in sorted(ids)[:3]]
    return ", ".join(each.name or f"its parameter of shape {list(each.shape)}" for each in several)
