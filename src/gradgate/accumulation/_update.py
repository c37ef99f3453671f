"""One update: what a window of micro-batches does to the parameters that its optimizers own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from gradgate.accumulation._checks import check_graph, check_scalar, claim, release
from gradgate.accumulation._counts import Count, Reduction, check_reduction, checked_count, is_zero
from gradgate.accumulation._finish import finish
from gradgate.accumulation._into import Into, check_reached, receivers
from gradgate.accumulation._loss_scale import LossScale
from gradgate.accumulation._parameters import owned_parameters
from gradgate.accumulation._readings import Readings
from gradgate.accumulation._signals import uninterrupted
from gradgate.accumulation._slots import Slots
from gradgate.accumulation._sums import Sums
from gradgate.errors import UpdateError

if TYPE_CHECKING:
    from gradgate.accumulation._accumulator import Accumulator

T = TypeVar("T")

_THOROUGH = 3  # windows of an accumulator in which every gradient is watched


class Update(Readings):
    """A window being added up. Made by :meth:`Accumulator.update` and used as a context manager.

    Leaving the block unscales, divides once, clips, steps, clears and schedules, in this order. An
    exception inside the block steps nothing, puts ``.grad`` back as it was and goes on to the caller.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._settings = accumulator._settings
        self._scale = LossScale(accumulator._settings.scaler)
        super().__init__(Sums((), self._scale))
        self._slots: Slots | None = None

    # -- the window -------------------------------------------------------------------------------

    def __enter__(self) -> Update:
        if self._state != "new":
            raise UpdateError(
                "update: this update was already entered; an update is one window. Write "
                "`with accumulator.update() as update:` anew for each."
            )
        try:
            with uninterrupted():
                self._open()
            return self  # inside: an interrupt that arrives just now is rolled back too
        except BaseException as error:
            self._give_up()
            self._company.tell_of(error)
            raise

    def _open(self) -> None:
        parameters = owned_parameters(self._settings.optimizers)
        self._company.engine = self._accumulator._engine(parameters)
        claim(self, parameters, self._settings)
        try:
            slots = Slots(parameters, self._accumulator._leftovers, self._settings)
        except BaseException:
            release(self)
            raise
        self._slots, self._state = slots, "open"
        self._accumulator._open_update = self
        slots.open()
        self._company.hold()
        thorough = self._accumulator._windows < _THOROUGH
        self._sums = Sums(parameters, self._scale, thorough=thorough, sharded=self._company.sharded)
        self._accumulator._batch_norms.open()
        if self._accumulator._unfinished is not None:
            self._resume(self._accumulator._unfinished)

    def micro_batches(self, window: Iterable[T]) -> Iterator[T]:
        """Go through the micro-batches of this window.

        Between two of them the backward calls belong to one micro-batch. In an update that goes on from a
        saved state, the micro-batches that it already holds are skipped: hand it the same window.

        Args:
            window: an iterable of micro-batches, such as the windows of :func:`windows`, or a list.

        Yields:
            each micro-batch, as it is.

        Raises:
            UpdateError: the update is not open, or has already been given its micro-batches.
        """
        self._require_open("micro_batches")
        ahead = self._company.overlaps
        return self._place.through(self._company.even(window), self._begin_micro_batch, ahead=ahead)

    def _begin_micro_batch(self) -> None:
        self._require_open("micro_batches")
        self._accumulator._batch_norms.next_micro_batch()
        self._company.begin(self._place.micro_batches + 1, self._place.expected)

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
        """Add one loss's gradient to the window, weighed by the items that it was taken over.

        Only parameters that the accumulator's optimizers own receive anything, whatever else the graph
        contains; the part of the backward pass that would serve others is not run. The sum is divided
        by the whole window's count when the block ends, not before.

        Args:
            loss: a scalar, shape ``[]`` or ``[1]``, floating, attached to a graph. The graph is freed.
            count: items in the loss, ``>= 0``: samples, valid tokens, or their summed weights. A number,
                or a tensor of one element; one on a device is not waited for. Left out, it is read where the
                graph proves it: of ``cross_entropy`` with its ignored and weighted targets, ``mse_loss``,
                ``.mean()``, if every operation down to the model's last layer is known to keep samples apart.
                Zero is fine: nothing is run. A zero that lies on a device is found out too late for that, so
                its loss has to be finite.
            reduction: "mean" if ``loss`` is a mean over its items, "sum" if it is their sum.
            name: which loss this is. Several calls in one micro-batch are several losses, told apart by
                their order if they have no names. Each is averaged over its own items of the window, and
                the means add, as in ``loss_a + loss_b``. A second loss keeps a second set of gradients
                until the block ends; add losses of equal counts up to save that.
            into: modules and parameters, or one, that this loss goes into; of a module, what is owned. Without it
                all that is owned and reached. What is left out receives nothing from this loss, and the part of the
                backward pass that would only serve it is not run.
            retain_graph: keep the graph, for another loss that shares it.

        Raises:
            OwnerError: ``into`` names something of which nothing is owned.
            ShapeError: ``loss`` is not a floating scalar.
            CountError: ``count`` is negative, not finite, or missing where the graph does not prove it.
            GraphError: ``loss`` has no graph, or every owned parameter is frozen, or one in ``into``; or the loss
                reaches nothing in ``into`` (asked in an accumulator's first windows).
            UpdateError: the update is not open, or it is unclear whether this is another micro-batch or
                another loss.
        """
        self._require_open("backward")
        check_scalar(loss)
        count = checked_count(loss, count, reduction)
        if not self._company.counts(self._place.micro_batches):
            count = 0
        receiving = None if into is None else receivers(into, self._sums.parameters, self._settings.models)
        if not is_zero(count):
            check_graph(loss)
            if receiving is not None and self._accumulator._windows < _THOROUGH:
                check_reached(loss, receiving, self._settings.models)
        name = self._place.name_of(name)
        before = self._sums.by_name.get(name)
        if before is None:
            check_reduction(loss, reduction)
            self._scale.look_at(loss)
        elif not self._place.in_loop and self._accumulator._batch_norms.stand_aside:
            raise UpdateError(
                "backward: batch_norm='window' has to know where a micro-batch begins, and this window has "
                "another one outside update.micro_batches(...). Loop over `update.micro_batches(window)`."
            )
        later = before is not None and bool(before.counts)
        self._accumulator._first_looks.at(name, loss, count, self._place.expected, later)
        with self._over_ranks(name, loss, count, reduction):
            self._sums.add(name, loss, count, reduction, retain_graph, receiving)
        self._accumulator._first_looks.hidden.passed()
        self._place.called(len(self._sums.by_name[name].counts))

    def _over_ranks(
        self, name: str, loss: Tensor, count: Count, reduction: Reduction
    ) -> AbstractContextManager[None]:
        """Return the company of a backward pass: of the last one of a window gradients go over ranks meanwhile."""
        if not self._company.overlaps or not self._place.last:
            return nullcontext()
        if self._company.sent:
            raise UpdateError(
                f"backward: {name!r} comes after the last backward pass of the window, whose gradients have gone "
                "over ranks. With sync='overlap' each micro-batch has one loss: add them up, or take sync='last'."
            )
        if {*self._sums.by_name} - {name}:
            return nullcontext()  # several losses have several divisors: they go over ranks at the end
        chosen = self._sums.make_ready(name, loss, count, reduction)
        if not is_zero(count) and chosen.weight(loss, count, reduction) != 1:
            return nullcontext()  # it is added apart, so what goes over ranks is not in `.grad` before
        return self._company.last_backward(self._sums, chosen)

    # -- the end ----------------------------------------------------------------------------------

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        finally:
            # Only if an interrupt arrived where _leave was about to do this itself.
            if self._state == "open":
                self._give_up()

    def _leave(self, error: BaseException | None) -> None:
        finished = error is None and self._state == "open"
        try:
            if finished:
                self._finish()
        except Exception as failure:
            self._company.tell_of(failure)
            raise
        finally:
            if error is not None:
                self._company.tell_of(error)
            self._give_up()
        if error is not None and self._company.explained(error) is not error:
            raise self._company.explained(error) from error
        if finished:
            self._accumulator._update_hooks(self)

    def _finish(self) -> None:
        self._place.check_losses()
        if self._slots is not None:
            finish(self, self._sums, self._slots, self._scale, self._settings, self._company)

    def _noted_norm(self, norm: float | Tensor) -> None:
        """Take the norm of the mean gradient, for logging."""
        self._norm = norm

    def _noted_gradient(self, values: list[Tensor], factor: float) -> None:
        """Show the sums that a step will use to whoever asked for them."""
        self._accumulator._gradient_hooks(self, values, factor)

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Let the optimizers step: at any other time in the block their own step is refused."""
        self._accumulator._stepping = True
        try:
            yield
        finally:
            self._accumulator._stepping = False

    def _noted_step(self) -> None:
        """Take it that the parameters have moved: from here on there is no way back."""
        self._stepped = True
        self._accumulator._batch_norms.close(keep=True)

    def _give_up(self) -> None:
        """Roll back if the window is still open, whatever else arrives meanwhile."""
        try:
            if self._state == "open":
                self._roll_back()
        except KeyboardInterrupt:  # it came before signals were held back
            self._give_up()
            raise

    def _roll_back(self) -> None:
        """Put ``.grad``, batch norms and the scaler back as they were before the window."""
        with uninterrupted():
            try:
                if self._slots is not None:
                    self._slots.roll_back()
                self._company.discard()
                self._accumulator._batch_norms.close(keep=False)
                self._scale.roll_back()
            finally:
                self._end()

    def _close(self) -> None:
        """End the window after the step."""
        if self._slots is not None:
            self._slots.close()
        self._end()

    def _end(self) -> None:
        """Let go of everything but the numbers for logging."""
        self._state = "closed"
        self._slots = None
        self._sums.release()
        self._company.release()
        self._accumulator._open_update = None
        self._accumulator._windows += 1
        self._accumulator._unfinished = None
        release(self)

    # -- an unfinished window ---------------------------------------------------------------------

    @property
    def _carried(self) -> list[Tensor | None] | None:
        """The decayed gradients that stand aside while the window is open."""
        return None if self._slots is None else self._slots.carried

    @property
    def _before(self) -> list[Tensor | None]:
        """What stood in ``.grad`` when the window began."""
        return [] if self._slots is None else self._slots.before

    def _unfinished(self) -> dict[str, Any]:
        """Return a copy of the window so far, in plain containers; see :meth:`Accumulator.state_dict`."""
        if self._accumulator._batch_norms.stand_aside:
            raise UpdateError(
                "state_dict: batch_norm='window' keeps running statistics aside while a window is open, and the "
                "model's own buffers hold those of the last micro-batch. Save between two windows."
            )
        return {
            "micro_batches": self._place.done,
            "scale": self._scale.value(),
            "sums": self._sums.state(),
        }

    def _resume(self, state: dict[str, Any]) -> None:
        """Go on from a state: nothing but the open block differs from the process that saved it."""
        self._place.resume(state["micro_batches"])
        self._scale.resume(state["scale"])
        self._sums.resume(state["sums"])

    def _require_open(self, verb: str) -> None:
        if self._state != "open":
            raise UpdateError(
                f"{verb}: this update is {self._state}, not open. Use it inside `with accumulator.update() as "
                "update:`."
            )
