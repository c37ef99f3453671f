"""Finds batch norms in training mode whose networks run only without gradients."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._run import Run
from gradgate.events import Frame, Ids, ModeSet, NoGradEntered, Site, StatisticsMoved, Stepped

_STEPS = 2


@dataclass(frozen=True)
class RunWithoutGradients:
    """Batch norms of one network.

    Attributes:
        where: line that puts the network into training mode, runs it, or constructs it.
        names: names of the batch norms.
        holder: largest module around the batch norms that contains no trained parameter.
        times: number of steps in which the statistics changed.
    """

    where: Site | Frame
    names: tuple[str, ...]
    holder: str
    times: int


def run_without_gradients(run: Run) -> Iterator[RunWithoutGradients]:
    """Yield the networks that no loss reaches but whose batch norms keep updating their statistics."""
    used = run.reached.union(run.owned, *(event.moved for event in run.of(Stepped)))
    idle = Counter(
        event.parameters for event in run.of(StatisticsMoved) if _is_unused(run, event.parameters, used)
    )
    networks: dict[str, list[Ids]] = defaultdict(list)
    for ids, times in idle.items():
        if times >= _STEPS:
            networks[untrained_module(run, run.name(min(ids)))].append(ids)
    for holder, norms in networks.items():
        together: Ids = frozenset().union(*norms)
        modes = [mode for mode in run.of(ModeSet) if together <= mode.parameters]
        if holder and not (modes and not modes[-1].training):
            yield RunWithoutGradients(
                modes[-1].site if modes else _where_run(run, together),
                tuple(sorted({run.name(min(each)).rpartition(".")[0] for each in norms})),
                holder,
                max(idle[each] for each in norms),
            )


def untrained_module(run: Run, name: str) -> str:
    """Return the largest module that holds this parameter but no trained one: "model.features"."""
    parts = name.split(".")[:-1]
    trained = [run.name(number) for number in run.owned & run.reached if run.parameters[number].trainable]
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        if not any(each.startswith(f"{path}.") for each in trained):
            inner = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts[1:length])
            return parts[0] + inner
    return ""


def _where_run(run: Run, ids: Ids) -> Site | Frame:
    """Return the line that turns gradients off in most steps, or the network's constructor if there are several."""
    steps = [number for number, _ in run.numbered(Stepped)]
    inside = Counter(event.site for number, event in run.numbered(NoGradEntered) if number < steps[-1])
    often = [site for site, times in inside.items() if site and times * 2 >= len(steps)]
    made = run.parameters[min(ids)].made
    return often[0] if len(often) == 1 else (made[-1] if made else ())


def _is_unused(run: Run, ids: Ids, used: Ids) -> bool:
    """Return whether trainable parameters are in no loss or optimizer, and are no copy of trained parameters."""
    several = [run.parameters[number] for number in ids]
    if ids & used or not all(each.trainable and each.still for each in several):
        return False
    shapes = Counter(each.shape for each in run.parameters.values() if each.root == several[0].root)
    trained = Counter(run.parameters[number].shape for number in run.owned & run.reached)
    return several[0].root == "" or bool(shapes - trained)  # else a copy, such as a target network
