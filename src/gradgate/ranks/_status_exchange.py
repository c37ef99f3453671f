"""The status that each rank reports in a window, and the decisions that follow from all statuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from gradgate.errors import RankError
from gradgate.ranks._process_group import RankGroup
from gradgate.tally import Tally

Status: TypeAlias = Literal["done", "failed", "out of memory"]


@dataclass(frozen=True)
class RankStatus:
    """One rank's report on its part of a window. Dictionaries are keyed by the name of the loss."""

    status: Status = "done"
    # Sent before the loss over all representations, or at the end of the window.
    phase: Literal["coupled", "end"] = "end"
    error: str = ""
    counts: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)  # each loss, summed over its items
    units: dict[str, float] = field(default_factory=dict)  # the unit of each sum
    filled: str = ""  # one digit for each parameter: 0 no gradient, 1 dense, 2 sparse
    received: bool = False  # whether any parameter received a gradient in this window
    trained: int = 0  # a checksum of the frozen parameters, and of the rows chosen by train_rows
    first: tuple[float, float] | None = None  # the first micro-batch's squared gradient norm, and its items
    rows: list[Any] | None = None  # for each representation: the number of rows, the dtype, and the row shape
    reached_by_pass: str = ""  # see FullySharded


class Totals(NamedTuple):
    """The sums, counts and units of a window over all ranks. Dictionaries are keyed by the name of the loss."""

    tallies: dict[str, Tally]
    units: dict[str, float]  # the largest of any rank; ranks convert their sums to it before they add them
    first_micro_batches: list[tuple[float, float]]  # each rank's squared gradient norm and items, if measured
    received: bool  # whether any rank's parameters received a gradient


@dataclass(frozen=True)
class StatusExchange:
    """The statuses of all ranks, in their order."""

    statuses: tuple[RankStatus, ...]
    processes: tuple[int, ...]  # the numbers of the ranks in messages

    @classmethod
    def run(cls, ranks: RankGroup, status: RankStatus) -> StatusExchange:
        """Return the statuses of all ranks, after exchanging them.

        Raises:
            RankError: a rank died, or did not join.
        """
        statuses = tuple(RankStatus(**received) for received in ranks.exchange(vars(status)))
        return cls(statuses, ranks.processes)

    def stopped(self, rank: int) -> str | None:
        """Return which other rank stopped and why; None if no other rank stopped."""
        failed = [
            (number, status)
            for number, status in enumerate(self.statuses)
            if status.status != "done" and number != rank
        ]
        if not failed:
            return None
        number, first = failed[0]
        others = f" (and {len(failed) - 1} others)" if len(failed) > 1 else ""
        return (
            f"rank {self.processes[number]}{others} stopped in this window: {first.error.removesuffix('.')}."
        )

    def problem(self, rank: int) -> str | None:
        """Return why the ranks cannot go on together; None if they can."""
        stopped = self.stopped(rank)
        if stopped is not None:
            return f"update: {stopped} No rank made a step. Fix the error on that rank first."
        coupled = [status.phase == "coupled" for status in self.statuses]
        if any(coupled) and not all(coupled):
            return (
                f"update: rank {self.processes[coupled.index(True)]} called update.backward_coupled(...) and "
                "others did not, so they would wait for each other. No rank made a step. Call it on every rank, "
                "with an empty list of micro-batches if the rank has none."
            )
        for process, status in zip(self.processes, self.statuses, strict=True):
            if status.trained != self.statuses[0].trained:
                return (
                    f"update: ranks {self.processes[0]} and {process} do not train the same entries: they froze "
                    "different parameters, or chose different rows with train_rows. Their parameters would "
                    "diverge. No rank made a step. Make the same calls on every rank."
                )
        return None

    @property
    def replays(self) -> bool:
        """Whether all ranks rerun the window: memory ran out somewhere, and nothing else failed."""
        outcomes = {status.status for status in self.statuses}
        return "out of memory" in outcomes and "failed" not in outcomes

    @property
    def totals(self) -> Totals:
        """The totals over all ranks."""
        tallies, units = {}, {}
        for name in dict.fromkeys(name for status in self.statuses for name in status.counts):
            count = sum(status.counts.get(name, 0) for status in self.statuses)
            total = sum(status.totals.get(name, 0.0) for status in self.statuses)
            tallies[name] = Tally(total, int(count) if count == int(count) else count)
            units[name] = max((s.units[name] for s in self.statuses if name in s.units), default=1.0)
        firsts = [status.first for status in self.statuses if status.first is not None]
        return Totals(tallies, units, firsts, any(status.received for status in self.statuses))

    @property
    def filled(self) -> list[int]:
        """For each parameter, whether any rank has a gradient for it: 0 none, 1 dense, 2 sparse."""
        digits = zip(*(status.filled for status in self.statuses), strict=True)
        return [max(map(int, of_all)) for of_all in digits]


def check_agreement(ranks: RankGroup, facts: dict[str, str | float], error: RankError | None) -> None:
    """Raise RankError on all ranks if they report different facts, or if one of them has an error.

    Args:
        ranks: the ranks that must agree.
        facts: the facts by name. Texts must be equal, numbers equal up to rounding.
        error: why this rank cannot begin, if it cannot.
    """
    message = {**facts, "error": str(error or "")}
    if error is not None:
        with suppress(RankError):  # the others may be gone
            ranks.exchange(message)
        raise error
    received = ranks.exchange(message)
    for rank, message in zip(ranks.processes, received, strict=True):
        if message["error"]:
            raise RankError(
                f"update: rank {rank} cannot begin its window: {str(message['error']).removeprefix('update: ')}"
            )
    for name in facts:
        values = [message.get(name, "nothing") for message in received]
        if all(isinstance(value, float) for value in values):
            differ = max(values) - min(values) > 1e-9 * max(values)
            values = [f"{value:.9g}" for value in values] if differ else [""]
        if len(set(values)) > 1:
            listed = "; ".join(
                f"{_ranks_with(values, value, ranks)} {value}" for value in dict.fromkeys(values)
            )
            raise RankError(
                f"update: ranks differ in {name}: {listed}. Their parameters would diverge. Create the accumulator "
                "in the same way on every rank, from the same parameters. If the ranks train separately, pass "
                "ranks=False."
            )


def _ranks_with(values: list[str], value: str, ranks: RankGroup) -> str:
    pairs = zip(ranks.processes, values, strict=True)
    numbers = [str(number) for number, of_rank in pairs if of_rank == value]
    shown = ", ".join(numbers[:4]) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}:"
