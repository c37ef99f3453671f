"""Checks a loss before its backward pass, mostly at its first calls, where most mistakes show up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradgate.accumulation._batch_norm import BatchNorms
from gradgate.accumulation._class_weights import ClassWeights
from gradgate.accumulation._clips import Clips, warn_if_mixed
from gradgate.accumulation._counts import (
    UPDATE,
    Caller,
    Count,
    Counted,
    Reduction,
    check_reduction,
    count_in_graph,
    counted_terms,
    described_functions,
    divided_by,
    functions_in,
)
from gradgate.autograd_graph import (
    WEIGHT_ROUNDING,
    Graph,
    NotUnderstoodError,
    compared_items,
    finds_each_item,
    hidden_parameter,
    inputs_of,
    only_input,
    ops,
    reduced_shape,
    reduction_of,
    through,
    without_smoothing,
)
from gradgate.errors import CountWarning, CoupledLossWarning, DividedTwiceWarning, GraphError, ShapeError
from gradgate.user_warnings import warn

_CALLS = 16  # backward calls of each loss that are checked


class LossChecks:
    """Checks the first backward calls of each loss of an accumulator or trainer.

    Later, a loss is checked again only when its graph ends in another operation, or changes its size. Autograd
    numbers the nodes that a thread creates, so a graph's size is the difference of two numbers.
    """

    def __init__(self, caller: Caller = UPDATE) -> None:
        self._caller = caller
        self.node_number = 0  # at the end of the last backward pass
        # The size and the last operation of the graph that was walked last, for a loss whose first calls have all
        # been checked, and by whether the window already held that loss.
        self.known: dict[tuple[str, bool], tuple[Any, ...]] = {}
        self.settled: set[str] = set()  # the losses whose first calls have all been checked
        self._calls: dict[str, int] = {}
        # For each loss in this window, and each of its terms: the count passed, and the count that its graph shows.
        self._counted: dict[str, Counted] = {}
        self.clips = Clips()
        self._weights = ClassWeights(caller)
        self._contradicted = False
        self._checked_for_pairs: set[str] = set()
        self._normalized: set[str] = set()  # the losses with a batch norm, which has its own warning

    def check(
        self,
        name: str,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        micro_batches: int,
        later: bool,
        graph: tuple[Any, ...],
        batch_norms: BatchNorms,
        *,
        left_out: bool = False,
        traces: bool = True,
    ) -> None:
        """Check one loss of an update before its backward pass; raise or warn about what is wrong.

        ``graph`` is the number of autograd nodes created since the last backward pass, and the last operation.
        ``traces`` is whether gradients may be traced through the graph, which takes memory and needs saved
        weights. The other arguments are those of :meth:`check_count`.
        """
        refuse_hidden_parameters(loss)
        if not later:
            check_reduction(loss, reduction)
        if name in self.settled:
            self.known[name, later] = graph
            return
        if not later:
            _warn_if_spread(loss, micro_batches)
        else:
            if batch_norms.warn_once(name, loss):
                self._normalized.add(name)
            if name not in self._checked_for_pairs:
                self.clips.check_gates(loss)
        mixes = traces and name not in self._normalized
        self.check_count(name, loss, count, reduction, micro_batches, later, left_out=left_out, traces=mixes)

    def check_count(
        self,
        name: str,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        micro_batches: int,
        later: bool,
        *,
        left_out: bool,
        traces: bool = False,
    ) -> None:
        """Check whether the losses of a window, weighted by their counts, add up to that of the whole batch.

        ``micro_batches`` is the window's number of micro-batches, if known. ``later`` is whether the window has
        already had a call for this loss. ``left_out`` is whether ``count`` was read from the graph.
        """
        if name in self.settled:
            return
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._calls[name] == _CALLS:
            self.settled.add(name)
        if not later:
            self._warn_if_divided(loss, micro_batches)
        elif name not in self._checked_for_pairs:
            warned = self._warn_if_coupled(loss) or self._warn_if_function_of_mean(loss, count)
            warned = warned or (traces and warn_if_mixed(loss))
            if warned or not _is_one(count):  # a single sample has no pairs
                self._checked_for_pairs.add(name)
        if left_out:
            self._weights.check(name, loss, later)
        if not self._contradicted and reduction == "mean":
            self._warn_if_counted_otherwise(name, loss, count, later)

    def _warn_if_counted_otherwise(self, name: str, loss: Tensor, count: Count, later: bool) -> None:
        """Warn once if the counts in a window are not proportional to those that the losses' graphs show."""
        if not later:
            self._counted.pop(name, None)
        earlier = self._counted.setdefault(name, {})
        for term, found in counted_terms(loss, count).items():
            first = earlier.setdefault(term, found)
            (passed, items), (first_passed, first_items) = found, first
            # Only proportions matter: if sequences have equal length, counting sequences is as good as counting
            # tokens.
            if math.isclose(passed * first_items, first_passed * items, rel_tol=WEIGHT_ROUNDING):
                continue
            self._contradicted = True
            advice = (
                "Pass the number of items that took part in the loss: count=(labels != -100).sum(), for the labels "
                "that the loss receives."
            )
            if term:  # one count cannot be right for terms with different numbers of items
                advice = (
                    f"Pass each term with its own count and name{self._caller.loop}: "
                    "update.backward(term, count=n, name='...')."
                )
            else:
                _emit(lambda events: events.Miscounted((), *found, *first, _is_proved(loss)))  # noqa: B023
            warn(
                f"{self._caller.name}: count is {passed:.10g} for a mean over {items:.10g} items (read from the "
                f"graph), but an earlier loss in this window had count {first_passed:.10g} for {first_items:.10g} "
                "items. These counts are not proportional, so the micro-batches get the wrong weights. "
                f"{advice}",
                CountWarning,
            )
            return

    def _warn_if_divided(self, loss: Tensor, micro_batches: int) -> None:
        """Warn about the ``/ N`` that an ordinary accumulation loop needs and an exact window does not."""
        divisor = divided_by(loss) if micro_batches > 1 else None
        if divisor is None or not math.isclose(divisor, micro_batches):
            return
        _emit(lambda events: events.DividedTwice((), micro_batches))
        warn(
            f"{self._caller.name}: loss is a mean divided by {micro_batches}, the number of micro-batches of this "
            f"window. The update divides once, by the sum of all counts, so the gradient will be {micro_batches} "
            "times too small. Pass the loss without the division.",
            DividedTwiceWarning,
        )

    def _warn_if_coupled(self, loss: Tensor) -> bool:
        """Warn if a loss compares samples, by products or distances. Return whether it does."""
        compared = compared_items(loss.grad_fn)
        if compared is None:
            return False
        node, mixed = compared
        kind = "in batch" if finds_each_item(node) else "pairs"
        _emit(lambda events: events.Combined((), kind, frozenset(), ()))
        warn(
            f"{self._caller.name}: this loss compares the items of a micro-batch with one another: {mixed}. A "
            "split loses the pairs between micro-batches, so no split gives the gradient of the whole batch. "
            f"Compute the loss over the whole window{self._caller.loop}: "
            "update.backward_coupled(encode, micro_batches, loss_fn).",
            CoupledLossWarning,
        )
        return True

    def _warn_if_function_of_mean(self, loss: Tensor, count: Count) -> bool:
        """Warn if a loss is a function of a mean, such as ``mse_loss(...).sqrt()``. Return whether it is.

        A function of a single item is allowed, and so is a sum with one function per item.
        """
        functions = functions_in(loss)
        if not functions or (not isinstance(count, Tensor) and count == len(functions)):
            return False
        warn(f"{self._caller.name}: {described_functions(functions, self._caller)}", CoupledLossWarning)
        return True


def _emit(event: Callable[[Any], Any]) -> None:
    """Emit ``event(gradgate.events)`` if a checker is watching."""
    from gradgate import events  # slow to import, and rarely needed

    events.emit(lambda: event(events))


def _is_proved(loss: Tensor) -> bool:
    """Return whether the graph of a mean proves its count, so that ``count=`` may be left out."""
    try:
        count_in_graph(loss)
    except NotUnderstoodError:
        return False
    return True


def _warn_if_spread(loss: Tensor, micro_batches: int) -> None:
    """Warn about a sum divided by more than its number of items, for example by ``num_items_in_batch``."""
    found = _spread(loss) if micro_batches > 1 else None
    if found is not None:
        items, divisor = found
        warn(
            f"backward: loss is a sum over {items} items divided by {divisor:.10g}, so it is not their mean. "
            "The update divides once, by the sum of all counts, so the gradient will be too small. Pass the sum "
            "without the division: update.backward(loss, count=n, reduction='sum').",
            DividedTwiceWarning,
        )


def _spread(loss: Tensor) -> tuple[int, float] | None:
    """Return a summed torch loss's number of items and its divisor, or None unless the divisor is larger."""
    node = through(loss.grad_fn, ops.RESHAPES)
    inputs = None if node is None else inputs_of(node)
    if not loss.is_cpu or inputs is None or inputs[0].op != "div" or inputs[0].factor is None:
        return None
    summed = without_smoothing(inputs[0].node)
    if reduction_of(summed) != "sum":
        return None
    losses = only_input(summed) if summed.name() == ops.SUM else summed
    if getattr(losses, "_saved_weight", None) is not None:
        return None  # the weights of the items may add up to more than their number
    items, divisor = math.prod(reduced_shape(summed)), float(inputs[0].factor)
    return (items, divisor) if divisor > items else None


def check_scalar(loss: Tensor) -> None:
    """Raise ShapeError unless ``loss`` is a floating scalar."""
    if not isinstance(loss, Tensor):
        raise ShapeError(
            f"backward: loss is a {type(loss).__name__}, but it must be a tensor with a graph. Pass the loss "
            "itself, not loss.item(); if it is in a tuple, pass that element."
        )
    if loss.numel() != 1:
        raise ShapeError(
            f"backward: loss has shape {list(loss.shape)}, but it must be a scalar. Pass loss.mean() and "
            f"count={loss.numel()}, or loss.sum() with reduction='sum'."
        )
    if not loss.is_floating_point():
        raise ShapeError(
            f"backward: loss is {loss.dtype}, but it must be a real floating-point dtype. For a complex loss, "
            "pass loss.abs(); compute integer losses in floating point."
        )


def refuse_hidden_parameters(loss: Tensor) -> None:
    """Raise GraphError if a graph hides parameters from autograd, which would silently skip them."""
    hidden = hidden_parameter(Graph(loss))
    if hidden is None:
        return
    if hidden.node == ops.REENTRANT_CHECKPOINT:
        raise GraphError(
            "backward: the graph holds a reentrant checkpoint, which hides its parameters from autograd: "
            "they would get no gradient. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    raise GraphError(
        f"backward: the graph holds {hidden.node}, which runs its own backward pass through {hidden.module} "
        f"and hides its parameters ('{hidden.path}') from autograd: they would get no gradient, or a gradient "
        "outside the update. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) instead."
    )


def _is_one(count: Count) -> bool:
    """Return whether a loss has a single item. A count on a device is not read."""
    return (not isinstance(count, Tensor) or count.is_cpu) and float(count) == 1
