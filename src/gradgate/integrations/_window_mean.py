"""Turns a trainer's accumulated gradient into the mean over the items of its window."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradgate.accumulation import (
    Caller,
    Count,
    LossChecks,
    LossSum,
    Stamps,
    as_number,
    check_scalar,
    checked_count,
    count_in_graph,
    dense_values,
    divided_by,
    divisor_in_graph,
    is_sum,
    multiply,
    owned_parameters,
    separate,
)
from gradgate.autograd_graph import NotUnderstoodError, SamplesMixedError, inputs_of
from gradgate.errors import CountError, GradientError, UpdateError
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

    A trainer calls :meth:`add`, :meth:`before_backward` and :meth:`after_backward` for each micro-batch, and
    :meth:`finish` when the window ends.

    Args:
        library: the name of the trainer's package, for messages.
        advice: how the user passes a count, for messages.
        ranks: the number of ranks that average their gradients.
    """

    def __init__(self, library: str, advice: str, ranks: int = 1) -> None:
        self._caller, self._ranks = Caller(library, advice), ranks
        self._checks = LossChecks(self._caller)
        self._guards: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()
        # Clearing, clipping and other backward passes change all gradients, so watching that of one parameter is
        # enough: the smallest one, because masks of single rows, which do no harm, act on large parameters.
        self._watched: list[Tensor] = []
        self.divides_in_closure = False  # True during a step whose closure ends and divides the window
        self.divided = True  # False from the start of a micro-batch until its window is divided
        self.start()

    def start(self, unit: Count | None = None) -> None:
        """Begin a window. Discards an unfinished one."""
        self._sum = LossSum("loss", unit)  # a micro-batch contributes before its backward pass
        self._arrived: list[Tensor] = []  # the gradients that arrived at the losses
        self._divisors: list[tuple[Any, Any]] = []  # of losses with unproved counts, with those counts
        self._owned: list[Tensor] = []  # the parameters that the optimizers step
        self._parameters: list[Tensor] = []  # those whose `.grad` holds the window's sum
        self._empty: list[Tensor] = []  # those without a gradient before the latest backward pass
        self._stamps = Stamps()

    def restart(self) -> None:
        """Begin a window after gradients were cleared. Keep a micro-batch whose backward pass is still to come."""
        pending = self._sum.contributions[len(self._arrived) :]
        self.start(self._sum.unit)
        self._sum.contributions = pending

    @property
    def open(self) -> bool:
        """Whether a micro-batch was added since the last division."""
        return bool(self._sum.contributions)

    def add(self, loss: Tensor, count: Any = None, *, micro_batches: int, passed: Any = None) -> None:
        """Weight the gradient of a micro-batch by its count, in the backward pass that follows.

        Args:
            loss: the mean over the micro-batch, as the model or the user returned it.
            count: the number of items. If None, it is read from the loss's graph.
            micro_batches: the number of micro-batches in a full window.
            passed: the number of items that was passed to the loss as its divisor, if any.

        Raises:
            CountError: the count is missing and the graph does not prove it, or the loss is a sum.
            ShapeError: the loss is not a floating scalar.
        """
        check_scalar(loss)
        if is_sum(loss):
            raise CountError(
                f"{self._caller.name}: the loss of a micro-batch is a sum. The trainer's window is a mean over its "
                "items: return the mean, loss.mean() or reduction='mean'."
            )
        left_out = count is None
        if left_out and passed is not None and self._divides(loss, passed):
            count = checked_count(loss, passed, "mean", self._caller)
        else:
            count = checked_count(loss, count, "mean", self._caller)
            self._checks.check("loss", loss, count, "mean", micro_batches, self.open, left_out=left_out)
        weight = self._sum.weight(loss, count, self._first_unit)
        self._sum.record(loss, count, "mean")

        def weighted(gradient: Tensor) -> Tensor | None:
            self._arrived.append(gradient)
            if not isinstance(weight, Tensor) and weight == 1:
                return None
            return (gradient * weight).to(gradient.dtype)

        loss.register_hook(weighted)

    def before_backward(self, optimizers: Iterable[Any], modules: Iterable[nn.Module]) -> None:
        """Raise GradientError if gradients were changed within this window, or not cleared after the last window.

        ``optimizers`` step the parameters, and the backward pass fills those of ``modules``. Their parameters are
        listed once in each window.
        """
        if not self._stamps.hold():
            raise GradientError(
                f"{self._caller.name}: gradients were changed between two micro-batches of a window: cleared, "
                "clipped, or filled by another backward call. Clip with the trainer's own option, or when "
                "gradients are complete (`if accelerator.sync_gradients:`); add all terms to the loss that the "
                "trainer receives; and use torch.autograd.grad for other gradients."
            )
        if not self._parameters:
            # Reading a gradient synchronizes, but zero_grad() usually removes it.
            if any(p.grad is not None and bool(p.grad.norm()) for p in self._watched):
                raise GradientError(
                    f"{self._caller.name}: the gradients of the last window were not cleared, so the next window "
                    "would be added to them. Call optimizer.zero_grad() after each step. In Lightning, an "
                    "optimizer with a closure (LBFGS) needs accumulate_grad_batches=1."
                )
            self._owned = owned_parameters(optimizers)
            filled = (parameter for module in modules for parameter in module.parameters())
            self._parameters = list(dict.fromkeys([*self._owned, *filled]))
        self._empty = [parameter for parameter in self._parameters if parameter.grad is None]

    def after_backward(self) -> None:
        """Record the gradients, so that changes by other code are noticed before the next backward pass."""
        separate(self._empty)
        if not any(parameter.grad is not None for parameter in self._watched):
            # `zero_grad` of the optimizers clears only the parameters that they own.
            held = [p for p in self._owned or self._parameters if p.grad is not None]
            self._watched = [min(held, key=Tensor.numel)] if held else []
        self._stamps = Stamps(self._watched)

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
        added, arrived = len(self._sum.contributions), [float(gradient) for gradient in self._arrived]
        if len(arrived) != added or len(set(arrived)) > 1:
            raise self._changed(
                f"{added} micro-batches were added, and their losses received the gradients {arrived}. Each loss "
                "should have received the same gradient"
            )
        known = not divisors or not arrived or not math.isfinite(arrived[0] * scale)
        if not known and not any(
            math.isclose(arrived[0] * divisor, scale, rel_tol=0.01) for divisor in divisors
        ):
            raise self._changed(
                f"each loss was multiplied by {arrived[0] / scale:.4g} after it was returned, which the division "
                "by the count would undo"
            )
        for divisor, passed in self._divisors:
            if float(passed) and float(divisor) != float(passed):
                raise CountError(
                    f"{self._caller.name}: a loss was divided by {float(divisor):g}, but its micro-batch holds "
                    f"{float(passed):g} items (num_items_in_batch), so its count is unknown. {self._caller.count}"
                )
        tally = self._sum.tally()
        per_item = arrived[0] / as_number(self._sum.unit) if arrived and self._sum.unit is not None else None
        mine: dict[str, Any] = {
            "total": tally.total,
            "count": tally.count,
            "micro_batches": added,
            "per_item": per_item,
        }
        ranks = [mine] if self._ranks == 1 else RankGroup().exchange(mine)
        whole = sum((Tally(rank["total"], rank["count"]) for rank in ranks), Tally())
        parameters = self._parameters
        self.start()
        if len(factors := {rank["per_item"] for rank in ranks} - {None}) > 1:
            raise self._changed(f"the ranks multiplied their losses by different factors: {sorted(factors)}")
        if not factors:
            raise self._changed("the window ended, but no micro-batch was added to it")
        if not whole.count:
            raise CountError(
                f"{self._caller.name}: all micro-batches of this window have count 0, so the mean gradient is 0/0. "
                "Leave batches without items out of the loader."
            )
        self._sum.unit = power_of_two(whole.count / sum(rank["micro_batches"] for rank in ranks))
        (per_item,) = factors
        if math.isfinite(per_item):  # otherwise the loss scale is too large, and its scaler skips the step
            with torch.no_grad():
                multiply(dense_values(parameters), scale * self._ranks / (per_item * whole.count))
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
                f"an optimizer steps in the middle of a window, after {len(self._sum.contributions)} "
                "micro-batches, before their gradients were divided"
            )
        if not self.divided and any(p.grad is not None for p in owned_parameters([optimizer])):
            raise self._changed("an optimizer steps on gradients of a window to which no loss was added")

    def _changed(self, what: str) -> UpdateError:
        library = self._caller.name
        return UpdateError(
            f"{library} {version(library)}: {what}. Either the script calls backward or step itself, or this "
            f"version of {library} accumulates in a way that gradgate does not know. No step was made. Use a "
            "gg.Accumulator in a loop of your own, or a version named in docs/limits.md."
        )

    def _divides(self, loss: Tensor, passed: Any) -> bool:
        """Return whether a loss that does not prove its count has a divisor, which should be the count ``passed``.

        Reading them may synchronize, so they are compared when the window ends.
        """
        try:
            count_in_graph(loss)
        except SamplesMixedError:
            return False
        except NotUnderstoodError:
            divisor = _divisor(loss)
            if divisor is not None:
                self._divisors.append((divisor, passed))
            return divisor is not None
        return False

    def _first_unit(self, count: Count) -> Count:
        """Return the unit of the first window, the same on all ranks. Synchronizes only with several ranks."""
        if self._ranks == 1:
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
