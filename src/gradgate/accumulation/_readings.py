"""What is read of an update: means, counts and the norm, for logging."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradgate.accumulation._company import Company
from gradgate.accumulation._place import Place
from gradgate.accumulation._sums import Sums
from gradgate.errors import UpdateError
from gradgate.tally import Tally


class Readings:
    """A window's numbers, to be read while it is open and afterwards. Some wait for the device."""

    def __init__(self, sums: Sums) -> None:
        self._state: Literal["new", "open", "closed"] = "new"
        self._sums = sums
        self._place = Place()
        self._company = Company()
        self._norm: float | Tensor | None = None
        self._stepped = False

    @property
    def stepped(self) -> bool:
        """Whether the parameters were moved: False until the block ends, and if the update was skipped."""
        return self._stepped

    @property
    def losses(self) -> dict[str, Tally]:
        """Each loss's sum and count, by name; of all ranks once the block has ended. Waits for the device."""
        return self._company.tallies or {name: one.tally() for name, one in self._sums.by_name.items()}

    @property
    def loss(self) -> float:
        """The mean loss of the window so far; of several losses, the sum of their means. Waits for the device."""
        tallies = [tally for tally in self.losses.values() if tally.count]
        if not tallies:
            raise UpdateError(
                "update.loss: nothing was added yet, so there is no mean. Read it after a backward."
            )
        return sum(tally.mean for tally in tallies)

    @property
    def count(self) -> float:
        """The items of the window so far, in its first loss; of all ranks once the block has ended.

        Waits for the device if counts lie on one.
        """
        if self._company.tallies is not None:
            return next((tally.count for tally in self._company.tallies.values()), 0)
        return next((one.total_count() for one in self._sums.by_name.values()), 0)

    @property
    def micro_batch_count(self) -> int:
        """The micro-batches so far, of this rank."""
        return self._company.own(self._place.micro_batches)

    @property
    def grad_norm(self) -> float:
        """The 2-norm of the whole mean gradient before it was clipped. Waits for the device.

        Raises:
            UpdateError: the block has not ended, or it ended in an exception.
        """
        if self._norm is None:
            raise UpdateError(
                f"update.grad_norm: the update is {self._state} and has no final gradient. Read it after the "
                "block has ended."
            )
        return float(self._norm)

    def _repr_html_(self) -> str:
        from gradgate.accumulation._card import to_html

        return to_html(self, self._state if self._norm is None else "ended")
