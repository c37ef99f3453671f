"""What ranks tell each other at the end of a window, and what follows from it for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from gradgate.errors import RankError
from gradgate.ranks._process_group import Ranks
from gradgate.tally import Tally

Status: TypeAlias = Literal["done", "failed", "out of memory"]


@dataclass(frozen=True)
class Said:
    """What one rank says of its part of a window. By name of the loss where there are several."""

    status: Status = "done"
    phase: Literal["last", "end"] = "end"  # before its last backward pass, or at the end of the window
    error: str = ""
    counts: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)  # of the losses, summed over their items
    units: dict[str, float] = field(default_factory=dict)  # that its sums are held in
    filled: str = ""  # one digit for each parameter: 0 no gradient, 1 dense, 2 sparse


@dataclass(frozen=True)
class Meeting:
    """What all ranks have said of a window, in their order."""

    said: tuple[Said, ...]

    @classmethod
    def hold(cls, ranks: Ranks, said: Said) -> Meeting:
        """Wait for all ranks, and hear them.

        Raises:
            RankError: somebody died or did not come.
        """
        return cls(tuple(Said(**one) for one in ranks.tell(asdict(said))))

    def stopped(self, rank: int) -> str | None:
        """Return what another rank stopped by, in words; None if all are done."""
        failed = [
            (number, one) for number, one in enumerate(self.said) if one.status != "done" and number != rank
        ]
        if not failed:
            return None
        number, first = failed[0]
        others = f" (and {len(failed) - 1} others)" if len(failed) > 1 else ""
        return f"rank {number}{others} stopped in this window: {first.error}"

    @property
    def coming(self) -> bool:
        """Whether some have their last backward pass before them, and will meet again."""
        return any(one.phase == "last" for one in self.said)

    @property
    def all_at_last(self) -> bool:
        """Whether all have it before them, of one and the same loss."""
        return all(one.phase == "last" for one in self.said) and len(self._names()) == 1

    @property
    def replays(self) -> bool:
        """Whether the window is to be run again: memory ran out somewhere, and nothing else went wrong."""
        statuses = {one.status for one in self.said}
        return "out of memory" in statuses and "failed" not in statuses

    @property
    def tallies(self) -> dict[str, Tally]:
        """Each loss over all ranks."""
        return {
            name: Tally(sum(one.totals.get(name, 0.0) for one in self.said), _whole(counts))
            for name, counts in ((name, self._counts(name)) for name in self._names())
        }

    @property
    def units(self) -> dict[str, float]:
        """The unit that the ranks' sums of each loss are brought to before they are added: the largest."""
        names = self._names()
        return {
            name: max((one.units[name] for one in self.said if name in one.units), default=1.0)
            for name in names
        }

    @property
    def filled(self) -> list[int]:
        """For each parameter whether any rank has a gradient for it: 0 none, 1 dense, 2 sparse."""
        return [
            max(int(digit) for digit in digits)
            for digits in zip(*(one.filled for one in self.said), strict=True)
        ]

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for one in self.said for name in one.counts))

    def _counts(self, name: str) -> list[float]:
        return [one.counts.get(name, 0) for one in self.said]


def _whole(counts: list[float]) -> float:
    total = sum(counts)
    return int(total) if total == int(total) else total


def agree(ranks: Ranks, facts: dict[str, str | float]) -> None:
    """Raise RankError on all ranks unless they have the same facts: those that differ are named.

    Args:
        ranks: who is asked.
        facts: what has to be the same, by name: words exactly, numbers to rounding.
    """
    heard: Sequence[dict[str, Any]] = ranks.tell(facts)
    for name in facts:
        values = [one.get(name, "nothing") for one in heard]
        if all(isinstance(one, float) for one in values):
            values = (
                [f"{one:.9g}" for one in values] if max(values) - min(values) > 1e-9 * max(values) else [""]
            )
        if len(set(values)) > 1:
            said = "; ".join(f"{_numbered(values, value)} {value}" for value in dict.fromkeys(values))
            raise RankError(
                f"update: ranks differ in {name}: {said}. They would step differently, and drift apart. Make the "
                "accumulator in the same way on every rank, from the same parameters; or with ranks=False, if they "
                "are to train apart."
            )


def _numbered(values: list[str], value: str) -> str:
    numbers = [str(number) for number, one in enumerate(values) if one == value]
    shown = ", ".join(numbers[:4]) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}:"
