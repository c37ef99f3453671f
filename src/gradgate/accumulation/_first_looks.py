"""Looks taken at an accumulator's first losses: mistakes of a script show there, and looks cost time."""

from __future__ import annotations

import math
import warnings

from torch import Tensor

from gradgate.accumulation._batch_norm import BatchNorms
from gradgate.accumulation._counts import Count, divided_by, divisor_in_graph
from gradgate.accumulation._coupled import warn_if_coupled
from gradgate.accumulation._hidden import HiddenParameters
from gradgate.errors import CountWarning, DividedTwiceWarning

_LOOKS = 16  # backward calls of each loss that are looked at
_ROUNDING = 1e-5  # a loss of class weights saves the sum of its targets' weights in float32


class FirstLooks:
    """Looks at the first backward calls of each loss of an accumulator; then only for what its graph may hide.

    Args:
        batch_norms: where a warning of batch norms is due.
    """

    def __init__(self, batch_norms: BatchNorms) -> None:
        self._batch_norms = batch_norms
        self.hidden = HiddenParameters()
        self._seen: dict[str, int] = {}
        self._counted: dict[
            str, tuple[float, float]
        ] = {}  # of each loss in this window: a count, and what its graph says
        self._contradicted = False
        self._checked_for_pairs: set[str] = set()

    def at(self, name: str, loss: Tensor, count: Count, micro_batches: int, later: bool) -> None:
        """Look at one loss before its backward pass.

        Args:
            name: which loss.
            loss: as the caller passed it.
            count: as the caller passed it.
            micro_batches: how many this window holds, as far as known.
            later: whether this window holds a micro-batch of this loss already.

        Raises:
            GraphError: the graph hides parameters from autograd.

        Warns:
            DividedTwiceWarning, CountWarning, BatchNormWarning, CoupledLossWarning: each says what to change.
        """
        self.hidden.refuse(name, loss, later)
        seen = self._seen.get(name, 0)
        if seen >= _LOOKS:
            return
        self._seen[name] = seen + 1
        if not later:
            _warn_if_divided(loss, micro_batches)
        else:
            self._batch_norms.warn_once(name, loss)
            if name not in self._checked_for_pairs:
                self._checked_for_pairs.add(name)
                warn_if_coupled(loss)
        if not self._contradicted:
            self._warn_if_counted_otherwise(name, loss, count, later)

    def _warn_if_counted_otherwise(self, name: str, loss: Tensor, count: Count, later: bool) -> None:
        """Warn once where the counts of one window are not in proportion to what the losses' own graphs say.

        Only proportions matter, and only within a window: sequences of one length may be counted for their tokens.
        """
        if not later:
            self._counted.pop(name, None)
        if isinstance(count, Tensor) or not loss.is_cpu:
            return  # comparing would wait for the device
        known = divisor_in_graph(loss)
        if known is None or not count or not float(known):
            return
        known = float(known)
        first_count, first_known = self._counted.setdefault(name, (float(count), known))
        if not math.isclose(count * first_known, first_count * known, rel_tol=_ROUNDING):
            self._contradicted = True
            warnings.warn(
                f"backward: count is {count:.10g}, but this loss is a mean over {known:.10g} items, as its graph "
                f"shows, and an earlier one in this window came with count {first_count:.10g} for "
                f"{first_known:.10g} items. So micro-batches are not weighed as in the whole batch. Pass the items "
                "that took part in the loss: count=(labels != -100).sum(), of the labels as the loss gets them.",
                CountWarning,
                stacklevel=4,
            )


def _warn_if_divided(loss: Tensor, micro_batches: int) -> None:
    """Warn of the ``/ N`` that an ordinary accumulation loop needs and an update does not."""
    divisor = divided_by(loss) if micro_batches > 1 else None
    if divisor is not None and math.isclose(divisor, micro_batches):
        warnings.warn(
            f"backward: loss is a mean that was divided by {micro_batches}, the number of micro-batches of this "
            "window. The update divides once, by all counts, so its gradient will be "
            f"{micro_batches} times too small. Pass the loss without the division.",
            DividedTwiceWarning,
            stacklevel=4,
        )
