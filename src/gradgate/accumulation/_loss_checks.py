"""Checks of a loss before its backward pass; most of them at its first calls, where mistakes of a script show."""

from __future__ import annotations

import math
import warnings

from torch import Tensor

from gradgate.accumulation._batch_norm import BatchNorms
from gradgate.accumulation._counts import Count, Reduction, check_reduction, divided_by, divisor_in_graph
from gradgate.accumulation._graph_checks import refuse_hidden_parameters, warn_if_coupled
from gradgate.errors import CountWarning, DividedTwiceWarning, GraphError, ShapeError

_CALLS = 16  # backward calls of each loss that are checked
_ROUNDING = 1e-5  # a loss of class weights saves the sum of its targets' weights in float32


class LossChecks:
    """Checks the first backward calls of each loss of an accumulator.

    Later, the first call of each window is compared with its ``reduction``, and a graph is walked where it changes.

    Attributes:
        node_number: autograd's count of nodes when the last backward pass had ended. The size of a graph costs
            nothing to know: autograd numbers the nodes that a thread makes.
        passed: by name, and whether the window holds the loss already: the size of the last graph that was walked.
        settled: the losses whose first calls were all checked.
    """

    def __init__(self) -> None:
        self.node_number = 0
        self.passed: dict[tuple[str, bool], int] = {}
        self.settled: set[str] = set()
        self._calls: dict[str, int] = {}
        # Of each loss in this window: a count, and what its graph says.
        self._counted: dict[str, tuple[float, float]] = {}
        self._contradicted = False
        self._checked_for_pairs: set[str] = set()

    def check(
        self,
        name: str,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        micro_batches: int,
        later: bool,
        graph_size: int,
        batch_norms: BatchNorms,
    ) -> None:
        """Check one loss before its backward pass.

        Args:
            name: which loss.
            loss: as the caller passed it.
            count: as the caller passed it.
            reduction: as the caller passed it.
            micro_batches: how many this window holds, as far as known.
            later: whether this window holds a micro-batch of this loss already.
            graph_size: the nodes made since the last backward pass.
            batch_norms: where a warning of batch norms is due.

        Raises:
            GraphError: the graph hides parameters from autograd.
            CountError: the graph says that the loss is a sum, and not a mean, or the other way round.

        Warns:
            DividedTwiceWarning, CountWarning, BatchNormWarning, CoupledLossWarning: each says what to change.
        """
        if self.passed.pop((name, later), None) != graph_size:
            refuse_hidden_parameters(loss)
        self.passed[name, later] = graph_size
        if not later:
            check_reduction(loss, reduction)
        if name in self.settled:
            return
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._calls[name] == _CALLS:
            self.settled.add(name)
        if not later:
            _warn_if_divided(loss, micro_batches)
        else:
            batch_norms.warn_once(name, loss)
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
            return  # comparing would synchronize
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


def check_scalar(loss: Tensor) -> None:
    """Raise ShapeError unless ``loss`` is a floating scalar."""
    if not isinstance(loss, Tensor):
        raise ShapeError(
            f"backward: loss is a {type(loss).__name__}, a tensor with a graph is needed. Pass the loss itself, "
            "not loss.item(); of a tuple, its loss."
        )
    if loss.numel() != 1:
        raise ShapeError(
            f"backward: loss has shape {list(loss.shape)}, a scalar is needed. Pass loss.mean() and "
            f"count={loss.numel()}, or loss.sum() with reduction='sum'."
        )
    if not loss.is_floating_point():
        raise ShapeError(
            f"backward: loss is {loss.dtype}, a real floating type is needed. Pass loss.abs() of a complex one, "
            "and compute others in floating numbers."
        )


def check_graph(loss: Tensor) -> None:
    """Raise GraphError if nothing can be differentiated."""
    if not loss.requires_grad:
        raise GraphError(
            "backward: loss has no graph: it was made under no_grad, from .item() or .detach(), or from frozen "
            "parameters only. Compute it from the parameters with gradients enabled."
        )
