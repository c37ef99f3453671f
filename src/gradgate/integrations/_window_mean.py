"""Turns a trainer's accumulated gradient into the mean over the items of its window."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation import (
    Count,
    Counted,
    LossSum,
    are_proportional,
    as_number,
    check_scalar,
    checked_count,
    count_in_graph,
    counted_terms,
    dense_values,
    divided_by,
    divisor_in_graph,
    is_sum,
    multiply,
    owned_parameters,
    refuse_divided,
    warn_divided_twice,
    warn_not_proportional,
)
from gradgate.autograd_graph import NotUnderstoodError, SamplesMixedError, inputs_of
from gradgate.errors import CountError, UpdateError
from gradgate.integrations._held_gradient import HeldGradient
from gradgate.ranks import RankGroup
from gradgate.tally import Tally, power_of_two


class WindowMean:
    """Weights each micro-batch of a trainer's window by its count, and divides once, when the window ends.

    The trainer keeps its own loop: it may divide losses by the number of micro-batches and multiply them by a
    loss scale. A hook on each mean loss multiplies the gradient that arrives there by ``count / unit``, so
    ``.grad`` adds up to ``arrived / unit * sum(count * gradient)``. The arriving gradient is measured, and must be
    equal for all micro-batches. At the end, one multiplication turns the sum into ``sum(count * gradient) /
    sum(count)``.

    The unit keeps gradients at their usual size, for 16-bit losses. It is a power of two, so it does not round the
    result.

    Args:
        library: the name of the trainer's package, for messages.
        advice: how the user passes a count, for messages.
        ranks: the number of ranks that average their gradients.
    """

    def __init__(self, library: str, advice: str, ranks: int = 1) -> None:
        self._library, self._advice, self.ranks = library, advice, ranks
        self._unit: Count | None = None
        self._guards: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()
        self.held = HeldGradient()
        self.divides_in_closure = False  # True during a step whose closure ends and divides the window
        self.divided = True  # False from the start of a micro-batch until its window is divided
        self.start()

    def start(self) -> None:
        """Begin a window. Discards an unfinished one."""
        self._running = LossSum("loss", unit=self._unit)
        self._expected = 0
        self._parameters: list[Tensor] = []  # their `.grad` holds the window's sum
        self.empties: list[Tensor] = []  # those without a gradient before the latest backward pass
        self._arrived: list[Tensor] = []
        self._passed: list[tuple[Any, Any]] = []
        self._counted: Counted = {}  # the count of the first micro-batch, for each term of its loss
        self._divisors: set[float | None] = set()  # the divisors of means that were divided by hand

    def restart(self) -> None:
        """Begin a window after gradients were cleared. Keep a micro-batch whose backward pass is still to come."""
        unit, pending = self._running.unit, self._expected - len(self._arrived)
        self.start()
        self._running.unit, self._expected = unit, pending

    @property
    def open(self) -> bool:
        """Whether a micro-batch was added since the last division."""
        return self._expected > 0

    def add(self, loss: Tensor, count: Any = None, *, passed: Any = None) -> None:
        """Weight the gradient of a micro-batch by its count, in the backward pass that follows.

        Args:
            loss: the mean over the micro-batch, as the model or the user returned it.
            count: the number of items. If None, it is read from the loss's graph.
            passed: the number of items that was passed to the loss as its divisor, if any.

        Raises:
            CountError: the count is missing and the graph does not prove it, or the loss is a sum.
            ShapeError: the loss is not a floating scalar.
        """
        check_scalar(loss)
        count = self._count_of(loss, count, passed)
        weight = self._running.weight(loss, count, self._first_unit)
        value = loss.detach()  # the loss itself would keep its graph alive
        self._expected += 1

        def weighted(gradient: Tensor) -> Tensor | None:
            self._arrived.append(gradient)
            self._running.record(value, count, "mean")
            if not isinstance(weight, Tensor) and weight == 1:
                return None
            return (gradient * weight).to(gradient.dtype)

        loss.register_hook(weighted)

    def before_backward(self, parameters: Callable[[], Iterable[Tensor]]) -> None:
        """Raise if gradients were changed within this window, or not cleared after the last window.

        ``parameters`` lists those whose ``.grad`` holds the window's sum. It is called once in each window.
        """
        self.held.check(self._library, within=bool(self._arrived))
        self._parameters = self._parameters or list(dict.fromkeys(parameters()))
        self.empties = [parameter for parameter in self._parameters if parameter.grad is None]

    def finish(self, scaler: Any = None, divisors: Collection[float] = ()) -> Tally:
        """Divide the gradients of a window by its count over all ranks, and begin the next one.

        Synchronizes with the device, and with the other ranks.

        Args:
            scaler: the trainer's gradient scaler, or None. The loss scale stays in the gradients.
            divisors: the numbers by which the trainer may divide each loss. Empty if the script passes the loss
                itself.

        Returns:
            the window's loss and count, over all ranks.

        Raises:
            CountError: the window holds no items.
            UpdateError: the trainer scales the losses in a way that this class does not expect.
        """
        self.divided = True
        scale = 1.0 if scaler is None else scaler.get_scale()
        running, arrived = self._running, [float(gradient) for gradient in self._arrived]
        if len(arrived) != self._expected or len(set(arrived)) > 1:
            raise self._changed(
                f"{self._expected} micro-batches were added, and their losses received the gradients "
                f"{arrived}. Each loss should have received the same gradient"
            )
        known = not divisors or not arrived or not math.isfinite(arrived[0] * scale)
        if not known and not any(math.isclose(arrived[0] * each, scale, rel_tol=0.01) for each in divisors):
            raise self._changed(
                f"each loss was multiplied by {arrived[0] / scale:.4g} after it was returned, which the division "
                "by the count would undo"
            )
        for divisor, passed in self._passed:
            if float(passed) and float(divisor) != float(passed):
                raise CountError(
                    f"{self._library}: a loss was divided by {float(divisor):g}, but its micro-batch holds "
                    f"{float(passed):g} items (num_items_in_batch), so its count is unknown. {self._advice}"
                )
        if self._expected > 1 and self._divisors == {self._expected}:
            warn_divided_twice(self._library, self._expected)
        tally = running.tally()
        sent: dict[str, Any] = {"total": tally.total, "count": tally.count, "micro_batches": self._expected}
        sent["per_item"] = (
            arrived[0] / as_number(running.unit) if arrived and running.unit is not None else None
        )
        all_sent = [sent] if self.ranks == 1 else RankGroup().exchange(sent)
        parameters = self._parameters
        self.start()
        whole = sum((Tally(each["total"], each["count"]) for each in all_sent), Tally())
        if len(factors := {each["per_item"] for each in all_sent} - {None}) > 1:
            raise self._changed(f"the ranks multiplied their losses by different factors: {sorted(factors)}")
        if not factors:
            raise self._changed("the window ended, but no micro-batch was added to it")
        if not whole.count:
            raise CountError(
                f"{self._library}: all micro-batches of this window have count 0, so the mean gradient is 0/0. "
                "Leave batches without items out of the loader."
            )
        self._unit = self._running.unit = power_of_two(
            whole.count / sum(each["micro_batches"] for each in all_sent)
        )
        (per_item,) = factors
        if math.isfinite(per_item):  # otherwise the loss scale is too large, and its scaler skips the step
            with torch.no_grad():
                multiply(dense_values(parameters), scale * self.ranks / (per_item * whole.count))
        return whole

    def guard(self, optimizers: Iterable[Any]) -> None:
        """Until :meth:`release`, make these optimizers refuse to step before a window has been divided."""
        for optimizer in optimizers:
            inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps optimizers
            if inner not in self._guards:
                self._guards[inner] = inner.register_step_pre_hook(self._before_step)

    def release(self) -> None:
        """Let all optimizers step again."""
        for handle in self._guards.values():
            handle.remove()
        self._guards.clear()

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.divides_in_closure:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first argument is the optimizer
        if closure is not None:
            raise self._changed(
                f"{type(optimizer).__name__} steps with a closure, which would make backward passes within the step"
            )
        if self.open:
            raise self._changed(
                f"an optimizer steps in the middle of a window, after {self._expected} micro-batches, before their "
                "gradients were divided"
            )
        if not self.divided and any(p.grad is not None for p in owned_parameters([optimizer])):
            raise self._changed("an optimizer steps on gradients of a window to which no loss was added")

    def _changed(self, what: str) -> UpdateError:
        return UpdateError(
            f"{self._library} {version(self._library)}: {what}. Either the script calls backward or step "
            f"itself, or this version of {self._library} accumulates in a way that gradgate does not know. No "
            "step was made. Use a gg.Accumulator in a loop of your own, or a version named in "
            "docs/limits.md."
        )

    def _count_of(self, loss: Tensor, count: Any, passed: Any) -> Count:
        if is_sum(loss):
            raise CountError(
                f"{self._library}: the loss of a micro-batch is a sum. The trainer's window is a mean over its "
                "items: return the mean, loss.mean() or reduction='mean'."
            )
        if count is not None:
            checked = checked_count(loss, count, "mean")
            self._warn_if_counted_otherwise(loss, checked)
            self._divisors.add(divided_by(loss))
            return checked
        try:
            return count_in_graph(loss)
        except SamplesMixedError as mixed:
            raise CountError(
                f"{self._library}: the count of a micro-batch is missing, and its loss compares the items of the "
                f"micro-batch with one another: {mixed}. A split loses the pairs between micro-batches, so no "
                "count gives the gradient of the whole batch. Use a gg.Accumulator in a loop of your own: "
                "update.backward_coupled(encode, micro_batches, loss_fn)."
            ) from None
        except NotUnderstoodError as unknown:
            divisor = None if passed is None else _divisor(loss)
            if divisor is not None:
                self._passed.append((divisor, passed))
                return checked_count(loss, passed, "mean")
            refuse_divided(self._library, loss)
            raise CountError(
                f"{self._library}: the count of a micro-batch is missing, and the loss's graph does not prove what "
                f"it is: {unknown}. Micro-batches are weighted by their counts, so a guess would give a wrong "
                f"update. {self._advice}"
            ) from None

    def _warn_if_counted_otherwise(self, loss: Tensor, count: Count) -> None:
        """Warn if a window's counts are not proportional to those that the losses' graphs show."""
        for term, found in counted_terms(loss, count).items():
            first = self._counted.setdefault(term, found)
            if not are_proportional(found, first):
                advice = "Leave count out, or count the items that take part in the loss."
                if term:  # one count cannot be right for terms with different numbers of items
                    advice = "For terms with counts of their own, use a gg.Accumulator in a loop of your own."
                warn_not_proportional(self._library, found, first, advice)
                return

    def _first_unit(self, count: Count) -> Count:
        """Return the unit of the first window, the same on all ranks. Synchronizes only with several ranks."""
        if self.ranks == 1:
            return power_of_two(count)
        largest = torch.tensor(float(as_number(count)), dtype=torch.float64, device=RankGroup().device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return power_of_two(float(largest))


def _divisor(loss: Tensor) -> Any:
    """Return the divisor of a mean; for another loss, the tensor that last divided it; otherwise None."""
    known = divisor_in_graph(loss)
    if known is not None:
        return known
    inputs = None if loss.grad_fn is None else inputs_of(loss.grad_fn)
    if inputs is None or len(inputs) > 1 or inputs[0].op != "div" or divided_by(loss) is not None:
        return None
    return inputs[0].factor
