"""One update: adds up a window of micro-batches and steps the optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import Tensor

from gradgate.accumulation._calls import Into, check_reached, check_window, length_of, receivers
from gradgate.accumulation._counts import Count, Reduction, checked_count, is_zero
from gradgate.accumulation._coupled_window import CoupledWindow
from gradgate.accumulation._loss_checks import check_scalar
from gradgate.accumulation._windows import Window
from gradgate.errors import GraphError, UpdateError
from gradgate.notebook_tables import card
from gradgate.ranks import ALONE
from gradgate.tally import Tally
from gradgate.torch_compat import next_node_number

T = TypeVar("T")


class Update(CoupledWindow):
    """A window of micro-batches. Made by :meth:`Accumulator.update` and used as a context manager.

    When the block ends, the update unscales and divides the sums, clips, steps the optimizers, clears gradients,
    and steps the schedulers. If the block raises, nothing is stepped, ``.grad`` is restored, and the exception
    propagates.
    """

    def micro_batches(self, window: Iterable[T]) -> Iterator[T]:
        """Iterate over the micro-batches of this window.

        All backward calls in an iteration belong to one micro-batch. An update that resumes from a saved state
        skips the micro-batches that are already in its sum, so pass it the same window. Call ``backward`` for each
        micro-batch before the next one is drawn. To prefetch, wrap the window, not this iterator.

        Args:
            window: the micro-batches: a list, a window from :func:`windows`, or another iterable.

        Yields:
            each micro-batch, unchanged.

        Raises:
            UpdateError: the update is not open, or has already been given its micro-batches.
        """
        if self._state != "open":
            self._require_open("micro_batches")
        counter = self._counter
        counter.start_loop()
        check_window(window, "micro_batches")
        window = self._coordinator.even(window)
        self._own = self._coordinator.own_micro_batches
        if isinstance(window, Window):
            source, counter.expected = window.drain(), window.expected
        else:
            source, counter.expected = iter(window), length_of(window) or 1
        return self._each(counter.looking_ahead(source) if self._coordinator.overlaps else source)

    def _each(self, source: Iterator[T]) -> Iterator[T]:
        """Begin and yield each micro-batch, except those that a resumed window has already added."""
        counter, coordinator, batch_norms = self._counter, self._coordinator, self._shared.batch_norms
        for number, micro_batch in enumerate(source, 1):
            if number <= counter.to_skip:
                continue
            if self._state != "open":
                self._require_open("micro_batches")
            if batch_norms.pools:
                batch_norms.next_micro_batch(repeated=number > self._own)
            if coordinator is not ALONE:
                coordinator.begin(last=number >= counter.expected)
            counter.begin(number)
            yield micro_batch

    def backward(
        self,
        loss: Tensor,
        *,
        count: Count | None = None,
        reduction: Reduction = "mean",
        name: str | None = None,
        into: Into | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Add one loss's gradient to the window, weighted by its number of items.

        Only parameters that the accumulator's optimizers own receive gradients; the parts of the backward pass that
        only other parameters need are skipped. The sum is divided by the whole window's count when the block
        ends, not before.

        Args:
            loss: a scalar, shape ``[]`` or ``[1]``, floating, attached to a graph. The graph is freed.
            count: items in the loss, ``>= 0``: samples, valid tokens, or their summed weights. A number, or a
                tensor with one element; a tensor on a device is read when the block ends. If omitted, it is read
                from the graph of ``cross_entropy`` (with ignored and weighted targets), ``mse_loss`` or
                ``.mean()``, provided that every operation down to the model's last layer is known to keep samples
                separate. With a count of zero, no backward pass runs. A zero on a device is read too late to skip
                the pass, so the loss must be finite.
            reduction: "mean" if ``loss`` is a mean over its items, "sum" if it is their sum.
            name: the name of the loss. Several calls in one micro-batch add several losses; unnamed losses are
                matched by their order. Each loss is averaged over its own items in the window, and the means are
                added, as in ``loss_a + loss_b``. A second loss needs memory for a second set of gradients until
                the block ends; to avoid that, add losses with equal counts before the call.
            into: the module or parameter, or several, that receive this loss's gradient. A module stands for its
                owned parameters. By default, all owned parameters that the loss reaches.
            retain_graph: keep the graph for another loss that shares it.

        Raises:
            OwnerError: ``into`` names a module or parameter that the accumulator does not own.
            ShapeError: ``loss`` is not a floating scalar.
            CountError: ``count`` is negative, not finite, or missing when the graph does not prove it.
            GraphError: ``loss`` has no graph; every owned parameter is frozen, or one in ``into`` is; or the loss
                reaches nothing in ``into`` (checked in an accumulator's first windows).
            UpdateError: the update is not open, or it is unclear whether this is another micro-batch or another
                loss.
        """
        if self._state != "open":
            self._require_open("backward")
        if type(loss) is not Tensor or loss.numel() != 1 or not loss.is_floating_point():
            check_scalar(loss)
        left_out = count is None
        if type(count) is not int or count <= 0:
            count = checked_count(loss, count, reduction)
        shared, counter, sums = self._shared, self._counter, self._sums
        if counter.micro_batches > self._own:
            counter.refuse_idle("backward")
            count = 0
        receiving = None
        if into is not None:
            sharded = self._coordinator.sharded
            receiving = receivers(into, sums.parameters, self._settings.models, sharded=sharded)
        if not loss.requires_grad and not is_zero(count):
            raise GraphError(
                "backward: loss has no graph: it was computed under no_grad, from .item() or .detach(), or only "
                "from frozen parameters. Compute it from the parameters with gradients enabled."
            )
        if receiving is not None and not is_zero(count) and self._first:
            check_reached(loss, receiving, self._settings.models)
        name = counter.name(name)
        before = sums.by_name.get(name)
        if before is None:
            if self._scale is not None:
                self._scale.look_at(loss)
                if self._first:
                    self._scale.refuse_clips(loss)
        elif not counter.in_loop and shared.batch_norms.pooled:
            raise UpdateError(
                "backward: batch_norm='window' needs to know where each micro-batch begins, but this call is "
                "outside update.micro_batches(...). Loop over `update.micro_batches(window)`."
            )
        checks, later = shared.loss_checks, before is not None and bool(before.contributions)
        graph_size = next_node_number.use() - checks.node_number
        if not later or checks.passed.get((name, later)) != graph_size or name not in checks.settled:
            checks.check(
                name,
                loss,
                count,
                reduction,
                counter.expected,
                later,
                graph_size,
                shared.batch_norms,
                left_out=left_out,
                sharded=self._coordinator.sharded,
            )
        if self._coordinator.overlaps and counter.last:
            with self._overlapping(name, loss, count, reduction):
                sums.add(name, loss, count, reduction, retain_graph, receiving)
        elif name in checks.settled:
            sums.add(name, loss, count, reduction, retain_graph, receiving)
        else:
            with checks.clips.observed(() if self._coordinator.sharded else sums.parameters):
                sums.add(name, loss, count, reduction, retain_graph, receiving)
            if later or counter.expected > 1:
                checks.clips.warn(self._name)
        checks.node_number = next_node_number.use()  # backward passes make nodes too
        counter.calls += 1
        if not counter.in_loop:
            counter.micro_batches = max(counter.micro_batches, len(sums.by_name[name].contributions))

    def _name(self, parameter: Tensor) -> str:
        return self._settings.models.name(parameter, self._settings.optimizers)

    def _overlapping(
        self, name: str, loss: Tensor, count: Count, reduction: Reduction
    ) -> AbstractContextManager[None]:
        """Return a context that overlaps the all-reduce with the window's last backward pass."""
        if self._coordinator.all_reduced:
            raise UpdateError(
                f"backward: {name!r} comes after the window's last backward pass, which has already all-reduced "
                "the gradients. With sync='overlap', each micro-batch has one loss: add the losses, or use "
                "sync='last'."
            )
        if {*self._sums.by_name} - {name}:
            return nullcontext()  # several losses have several divisors: they are all-reduced at the end
        running, weight = self._sums.prepare(name, loss, count, reduction)
        if not is_zero(count) and weight != 1:
            return nullcontext()  # added separately, so `.grad` does not hold the sum during the pass
        unit = None if running.unit is None else float(running.unit)
        return self._coordinator.overlapping(name, unit, self._sums.all_reduced)

    # -- readings ---------------------------------------------------------------------------------

    @property
    def stepped(self) -> bool:
        """Whether the parameters were updated. False before the block ends, and if the update was skipped."""
        return self._stepped

    @property
    def losses(self) -> dict[str, Tally]:
        """Each loss's sum and count, by name; over all ranks once the block has ended.

        Synchronizes with the device.
        """
        return self._tallies or {name: running.tally() for name, running in self._sums.by_name.items()}

    @property
    def loss(self) -> float:
        """The mean loss of the window so far; with several losses, the sum of their means.

        Synchronizes with the device.
        """
        tallies = [tally for tally in self.losses.values() if tally.count]
        if not tallies:
            raise UpdateError(
                "update.loss: no loss was added yet, so there is no mean. Read it after a backward call."
            )
        return sum(tally.mean for tally in tallies)

    @property
    def count(self) -> float:
        """The number of items so far in the window's first loss; over all ranks once the block has ended.

        Synchronizes with the device if counts are on one.
        """
        if self._tallies is not None:
            return next((tally.count for tally in self._tallies.values()), 0)
        return next((running.total_count() for running in self._sums.by_name.values()), 0)

    @property
    def micro_batch_count(self) -> int:
        """The number of micro-batches so far on this rank."""
        return int(min(self._counter.micro_batches or self._coupled_micro_batches, self._own))

    @property
    def grad_norm(self) -> float:
        """The 2-norm of the whole mean gradient before it was clipped. Synchronizes with the device.

        Raises:
            UpdateError: the block has not ended, or it ended in an exception.
        """
        if self._norm is None:
            raise UpdateError(
                f"update.grad_norm: the update is {self._state} and has no final gradient. Read it after the "
                "block has ended."
            )
        return float(self._norm)

    @property
    def noise_scale(self) -> float | None:
        """The accumulator's gradient noise scale after this update, in items; None without an estimate.

        Raises:
            UpdateError: the accumulator was made without ``noise_scale=``.
        """
        if self._shared.noise_scale is None:
            raise UpdateError(
                "update.noise_scale: it is not measured. Create the accumulator with noise_scale=gg.NoiseScale()."
            )
        return self._noise_scale

    def _described(self) -> tuple[str, str]:
        """Return the state of the window and its number of micro-batches, as text."""
        number = self.micro_batch_count
        if self._state == "closed" and self._norm is not None:
            how = "stepped" if self._stepped else "skipped, without a step"
        else:
            how = self._state
        return how, f"{number} micro-batch{'' if number == 1 else 'es'}"

    def __repr__(self) -> str:
        how, micro_batches = self._described()
        if not self._stepped:
            return f"Update({how}, {micro_batches})"
        return f"Update(step {self._step}, {micro_batches}, {self.count:,} items, loss {self.loss:.6g})"

    def _repr_html_(self) -> str:
        how, micro_batches = self._described()
        if self._norm is None:
            return card("Update", f"{how}, after {micro_batches}", [])
        losses = self.losses
        rows = [
            [name if len(losses) > 1 else "loss", f"{tally.mean:.6g}", f"over {tally.count:,} items"]
            for name, tally in losses.items()
        ]
        rows.append(["gradient norm", f"{self.grad_norm:.6g}", ""])
        return card("Update", f"{micro_batches}, {how}", rows)
