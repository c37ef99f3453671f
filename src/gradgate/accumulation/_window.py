"""One update: opens a window, adds up its micro-batches, and ends it with a step or a rollback."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, length_hint
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradgate.accumulation._calls import (
    Into,
    check_reached,
    check_window,
    receivers,
)
from gradgate.accumulation._counts import STEP, UPDATE, Count, Reduction, checked_count
from gradgate.accumulation._coupled import add_coupled
from gradgate.accumulation._loss_checks import BatchNorms, LossChecks, check_scalar
from gradgate.accumulation._loss_scale import LossScale
from gradgate.accumulation._precision import Wide, keep_loaded_state_wide, narrow, widen
from gradgate.accumulation._settings import Decay, UpdateSettings, in_use, owned_parameters
from gradgate.accumulation._step import (
    Mean,
    check_prepared,
    clear_gradients,
    divide_and_clip,
    mean_of,
    step,
)
from gradgate.accumulation._sums import GradientSums, Stamps
from gradgate.accumulation._windows import Window
from gradgate.batch_size import NoiseScale, SmallBatch, add_window, refuse_sharded
from gradgate.coupled import Encode
from gradgate.errors import CountError, GradientError, GraphError, OwnerError, UpdateError
from gradgate.forward_state import AtRest, is_out_of_memory
from gradgate.ownership import claims
from gradgate.ranks import ALONE, Coordinator, RankSetup, Totals
from gradgate.signals import uninterrupted
from gradgate.tally import Tally
from gradgate.torch_compat import next_node_number

T = TypeVar("T")

_FULL = frozenset({torch.float32, torch.float64})
_dtype, _grad = attrgetter("dtype"), attrgetter("grad")
_DISTRIBUTED = dist.is_available()  # a property of torch's build
_LARGE = 1 << 63  # an integer of this size may be beyond the range of a float
_FIRST = 3  # an accumulator checks every gradient in its first windows


@dataclass(eq=False)
class TrainingState:
    """The state that an accumulator keeps between windows."""

    settings: UpdateSettings
    ranks: RankSetup
    batch_norms: BatchNorms
    noise_scale: NoiseScale | None = None
    loss_checks: LossChecks = field(default_factory=LossChecks)
    left: Stamps = field(default_factory=Stamps)  # the gradients that the accumulator left in `.grad`
    at_rest: AtRest = field(default_factory=AtRest)
    windows: int = 0
    steps: int = 0
    samples_that_fit: int | None = None
    unfinished: dict[str, Any] | None = None  # a loaded window, which the next update continues
    open_update: Update | None = None
    stepping: bool = False
    update_hooks: OrderedDict[int, Callable[[Any], object]] = field(default_factory=OrderedDict)


class SavedGradients:
    """The ``.grad`` of the owned parameters before a window; restored if the window is rolled back.

    Zeros that ``clear="zero"`` left stay in ``.grad``; decayed gradients are set aside until the window's own sum
    has been divided. Any other gradient comes from other code, and adding to it would mix two updates.

    Args:
        parameters: the parameters that the accumulator owns.
        settings: the accumulator's settings.
        left: the gradients that the accumulator itself left in ``.grad``.

    Raises:
        GradientError: a parameter holds a gradient that the accumulator did not leave there.
    """

    def __init__(self, parameters: Sequence[Tensor], settings: UpdateSettings, left: Stamps) -> None:
        check_left(parameters, settings, left)
        self.parameters = parameters
        self.before = list(map(_grad, parameters))
        self.left = left
        self.wide: list[Wide] = []
        # The decayed gradients to add to the mean, or None if nothing decays.
        decays = isinstance(settings.clear, Decay) and any(g is not None for g in self.before)
        self.carried = self.before if decays else None
        self._clear = settings.clear

    def prepare(self) -> None:
        """Prepare ``.grad`` for a window's sum."""
        if isinstance(self._clear, Decay):
            for parameter in self.parameters:
                parameter.grad = None
        if not _FULL.issuperset(map(_dtype, self.parameters)):
            widen(self.parameters, self.wide)
        if self._clear == "zero":
            for parameter, zeros in zip(self.parameters, self.before, strict=True):
                # `widen` has dropped the zeros together with their dtype.
                if zeros is not None and parameter.grad is None:
                    parameter.grad = zeros.to(parameter.grad_dtype)
            if self.wide:
                self.left = Stamps(self.parameters)

    def restore(self) -> None:
        """Restore everything to its state before the window."""
        for parameter in self.parameters:
            parameter.grad = None
        narrow(self.wide)
        for parameter, gradient in zip(self.parameters, self.before, strict=True):
            if gradient is not None and self._clear == "zero":
                gradient.zero_()  # the window added to it in place
            parameter.grad = gradient

    def close(self) -> None:
        """End the window after a step."""
        if self.wide and self._clear == "none":
            narrow(self.wide)
        torch.clear_autocast_cache()  # it holds casts of the old weights, if the whole loop runs under autocast


def check_left(parameters: Sequence[Tensor], settings: UpdateSettings, left: Stamps) -> None:
    """Raise GradientError if a parameter holds a gradient that is not ``left``."""
    strange = [p for p in parameters if p.grad is not None and not left.made(p, p.grad)]
    if strange:
        raise GradientError(
            f"update: {len(strange)} of {len(parameters)} parameters already hold a gradient that this "
            f"accumulator did not make: {settings.names(strange)}. Adding to it would mix two updates. "
            "Call optimizer.zero_grad() before the block, or run that backward through "
            "update.backward(...)."
        )


def check_unowned(parameters: Sequence[Tensor], settings: UpdateSettings) -> None:
    """Raise OwnerError if an open update already owns one of the parameters, or one is listed twice."""
    mine = set(map(id, parameters))
    if len(mine) < len(parameters):
        times = Counter(map(id, parameters))
        twice = list({id(p): p for p in parameters if times[id(p)] > 1}.values())
        raise OwnerError(
            f"update: the optimizers list {settings.names(twice)} twice, so both steps would use the same "
            "gradient. List each parameter once, in one group of one optimizer."
        )
    for others in list(claims.values()):
        shared = [parameter for parameter in others if id(parameter) in mine]
        if shared:
            raise OwnerError(
                f"update: another update that is still open owns {settings.names(shared)}. Both would add to the "
                "same gradients. Leave the other block first, or give each parameter one optimizer. If an "
                "interrupt left a window open, call accumulator.discard()."
            )


class MicroBatchCounter:
    """Counts the micro-batches and backward calls of a window, and names its losses."""

    in_loop = False  # whether the script loops over `update.micro_batches(...)`
    expected = 1  # how many micro-batches the window will have, if known
    micro_batches = 0  # micro-batches begun so far, including those of a resumed window
    calls = 0  # backward calls in the current micro-batch
    idle = 0  # earlier micro-batches without a backward call: the loop skipped them, or drew them too early
    to_skip = 0  # micro-batches that a resumed window has already added
    unnamed = 0  # losses without a name in the current micro-batch
    usual = 0  # losses without a name in each earlier micro-batch

    @property
    def done(self) -> int:
        """The number of micro-batches whose losses are in the sum."""
        return self.micro_batches - (self.in_loop and not self.calls)

    def resume(self, done: int) -> None:
        self.micro_batches = self.to_skip = done

    def begin(self, number: int) -> None:
        if self.unnamed != self.usual:
            self.check_losses()
        if not self.calls and number > self.to_skip + 1:
            self.idle += 1
        self.micro_batches, self.calls, self.unnamed = number, 0, 0

    def refuse_idle(self, what: str) -> None:
        """Raise UpdateError if earlier micro-batches had no backward call, so that the current one is unclear."""
        if self.idle:
            raise UpdateError(
                f"{what}: the loop is at micro-batch {self.micro_batches}, but {self.idle} of the earlier ones had "
                "no backward call. If list(...) or a prefetcher drew them early, this call belongs to another "
                "micro-batch. Loop over update.micro_batches(...) itself, and prefetch inside: "
                "update.micro_batches(prefetch(window)). If they were skipped, pass count=0 for each. Name each "
                "loss if a micro-batch has several."
            )

    def start_loop(self) -> None:
        if self.in_loop:
            raise UpdateError(
                "micro_batches: this update was already given its micro-batches. One update is one window; "
                "pass the whole window at once, for example itertools.chain(labelled, unlabelled)."
            )
        self.in_loop = True

    def name(self) -> str:
        """Return the name of a loss without one, made from its position in the micro-batch."""
        if self.calls and not self.in_loop:
            raise UpdateError(
                "backward: a second call without a name, outside update.micro_batches(...), may be another "
                "micro-batch (averaged with the first) or another loss (added to the first mean). Loop over "
                "`update.micro_batches(window)`, or name each loss: name='fake'."
            )
        self.unnamed += 1
        if self.unnamed > 1 and self.unnamed > self.usual:
            self.refuse_idle("backward")
        return "loss" if self.unnamed == 1 else f"loss {self.unnamed}"

    def check_losses(self) -> None:
        """Raise UpdateError if micro-batches have different numbers of unnamed losses."""
        if self.usual and self.unnamed and self.unnamed != self.usual:
            raise UpdateError(
                f"backward: micro-batch {self.micro_batches} had {self.unnamed} unnamed losses, but earlier "
                f"micro-batches had {self.usual}. Unnamed losses are matched by their order, so a missing "
                "loss would be mistaken for another. Name each loss: update.backward(loss, name='auxiliary')."
            )
        self.usual = self.usual or self.unnamed


class Update:
    """A window of micro-batches. Made by :meth:`Accumulator.update` and used as a context manager.

    When the block ends, the update unscales and divides the sums, clips, steps the optimizers, clears gradients,
    and steps the schedulers. If the block raises, nothing is stepped, ``.grad`` is restored, and the exception
    propagates.
    """

    _saved: SavedGradients  # set when the window opens
    _sums = GradientSums((), ALONE, Stamps())  # of windows that are not open yet

    def __init__(self, shared: TrainingState, *, may_replay: bool = False, planned: bool = False) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._may_replay = may_replay
        self._planned = planned  # whether a plan has promised a peak of memory
        self._state: Literal["new", "open", "closed"] = "new"
        # Every part of the window registers how to undo what it did: if it is rolled back, or in any case.
        self._undo, self._closing = ExitStack(), ExitStack()
        self._counter = MicroBatchCounter()
        self._coordinator: Coordinator = ALONE
        self._totals: Totals | None = None  # over several ranks, once the block has ended
        self._scale: LossScale | None = None
        self._first = shared.windows < _FIRST
        self._coupled: list[str] = []  # the names of losses over the whole window
        self._coupled_at = 0  # the loop's micro-batch at the last call for such a loss
        self._coupled_micro_batches = 0
        self._running = -1  # the index of the micro-batch that is running
        self._norm: float | Tensor | None = None
        self._noise_scale: float | None = None
        self._stepped = self._left = False
        self._step = 0  # the number of this step, counting all steps of the accumulator

    # -- the window -------------------------------------------------------------------------------

    def __enter__(self) -> Update:
        if self._state != "new":
            raise UpdateError(
                "update: this update was already entered, and an update is one window. Call "
                "accumulator.update() again for each window."
            )
        self._grad_enabled = torch.is_grad_enabled()
        try:
            self._open()
            return self  # inside `try`, so that an interrupt arriving now is rolled back too
        except BaseException as error:
            self._roll_back()
            self._report(error)
            raise

    def _open(self) -> None:
        """Open the window. Every action registers its rollback first, in case a signal interrupts it."""
        shared, settings, undo = self._shared, self._settings, self._undo
        # Read again for each window, so that groups added later belong to the next window.
        parameters = owned_parameters(settings.optimizers)
        if shared.noise_scale is not None:
            refuse_sharded(parameters)
        if _DISTRIBUTED and dist.is_initialized():
            self._coordinator = shared.ranks.coordinator(parameters, settings, may_replay=self._may_replay)
        coordinator = self._coordinator
        check_unowned(parameters, settings)
        self._saved = saved = SavedGradients(parameters, settings, shared.left)
        self._closing.callback(self._end)
        undo.callback(self._closing.close)
        claims[id(shared)] = parameters
        self._state, shared.open_update = "open", self
        if settings.scaler is not None:
            self._scale = LossScale(settings.scaler)
            undo.callback(self._scale.roll_back)
        undo.callback(saved.restore)
        saved.prepare()
        if coordinator is not ALONE:
            with uninterrupted():
                coordinator.open(undo, self._closing)
        self._sums = GradientSums(
            parameters,
            coordinator,
            saved.left,
            self._scale,
            thorough=self._first,
            measures=shared.noise_scale is not None,
        )
        if shared.unfinished is not None:  # continue the loaded window
            self._counter.resume(shared.unfinished["micro_batches"])
            if self._scale is not None:
                self._scale.resume(shared.unfinished["scale"])
            self._sums.resume(shared.unfinished["sums"])
            if (first := shared.unfinished["first"]) is not None:
                self._sums.first = partial(SmallBatch, *first)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
            self._left = error is None
        finally:
            if self._state == "open":  # an interrupt kept _leave from rolling back
                self._roll_back()
            if (
                not self._left
            ):  # an interrupt may have kept a no_grad of the scaler or an optimizer from ending
                torch.set_grad_enabled(self._grad_enabled)

    def _leave(self, error: BaseException | None) -> None:
        finished = error is None and self._state == "open"
        try:
            if finished:
                self._finish()
        except Exception as failure:
            self._report(failure)
            raise
        finally:
            if error is not None:
                self._report(error)
            if self._state == "open":
                self._roll_back()
        if error is not None and (explained := self._coordinator.explained(error)) is not error:
            raise explained from error
        if finished:
            for hook in tuple(self._shared.update_hooks.values()):  # a hook may remove itself
                hook(self)

    def _finish(self) -> None:
        """End the window with a step. Returns without one if the gradient is not usable."""
        shared, settings, saved, sums = self._shared, self._settings, self._saved, self._sums
        coordinator, measures = self._coordinator, shared.noise_scale is not None
        self._counter.check_losses()
        for optimizer in settings.prepared:
            check_prepared(optimizer)
        self._totals = totals = None if coordinator is ALONE else coordinator.exchange(sums.status())
        received = sums.received() if totals is None else totals.received
        factor = sums.combine(totals)
        if factor is None:
            raise self._no_items(alone=totals is None)
        if totals is not None:
            coordinator.add()
        mean = mean_of(
            saved.parameters,
            saved.carried,
            factor,
            settings,
            self._scale,
            received=received,
            measures=measures,
            losses=sums.losses,
        )
        self._norm = mean.norm
        if not mean.usable:
            if self._scale is not None:
                self._scale.overflowed()
            return
        noise = self._noise(mean) if measures else None
        divide_and_clip(mean, settings)
        with uninterrupted():
            shared.stepping = True
            try:
                step(saved.parameters, saved.wide, settings, self._scale)
            finally:
                shared.stepping = False
            try:
                self._stepped = True
                shared.steps += 1
                self._step = shared.steps
                if noise is not None and shared.noise_scale is not None:
                    add_window(shared.noise_scale, *noise)
                    self._noise_scale = shared.noise_scale.value
                clear_gradients(saved.parameters, settings.clear)
                if settings.scaler is not None:
                    settings.scaler.update()
                for scheduler in settings.schedulers:
                    scheduler.step()
            finally:
                # Runs even if a scheduler raises, because the optimizers have stepped.
                self._undo.pop_all()
                saved.close()
                self._closing.close()

    def _no_items(self, *, alone: bool) -> CountError:
        if alone and not self.micro_batch_count:
            return CountError(
                "update: no backward was called in this window, so there is nothing to step on. Call "
                "update.backward(loss, count=...) inside the block, or skip the block."
            )
        return CountError(
            f"update: all micro-batches of this window ({self.micro_batch_count}) have count 0, so the mean "
            "gradient is 0/0. Skip this update: do not enter the block for a window without items."
        )

    def _noise(self, mean: Mean) -> tuple[list[SmallBatch], int, float, float]:
        """Return the window's contribution to the noise scale. Synchronizes with the device."""
        if self._totals is None:
            first = self._sums.first()
            firsts = [] if first is None else [first]
        else:
            firsts = [SmallBatch(*first) for first in self._totals.first_micro_batches]
        counts = [tally.count for tally in self.losses.values()]
        norm = float(mean.norm_of_window)
        return firsts, len(counts), norm * norm, counts[0]  # norm**2 would raise on overflow

    def _report(self, error: BaseException) -> None:
        self._coordinator.report(error, out_of_memory=self._may_replay and is_out_of_memory(error))

    def _roll_back(self) -> None:
        """Undo everything that the window did, even if more signals arrive meanwhile."""
        try:
            with uninterrupted():
                self._undo.close()  # calls the rest even if a part raises
        except KeyboardInterrupt:  # it arrived before signals were delayed
            self._undo.close()
            raise

    def _end(self) -> None:
        """Release everything except the values for logging."""
        shared = self._shared
        self._state = "closed"
        self._sums.release()
        shared.open_update = shared.unfinished = None
        if self._settings.clear != "none":
            shared.left = Stamps(self._saved.parameters, earlier=shared.left)
        shared.windows += 1
        claims.pop(id(shared), None)

    def _require_open(self, verb: str) -> None:
        if self._state != "open":
            raise UpdateError(
                f"{verb}: this update is {self._state}, not open. Use it inside `with accumulator.update() as "
                "update:`."
            )

    # -- its micro-batches ------------------------------------------------------------------------

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
        self._require_open("micro_batches")
        counter = self._counter
        counter.start_loop()
        if self._first:
            check_window(window, "micro_batches")
        if self._coordinator is not ALONE:
            window = self._coordinator.pad_to_longest(window)
        if isinstance(window, Window):
            source, counter.expected = window.drain(), window.expected
        else:
            source, counter.expected = iter(window), length_hint(window, 1)
        return self._begin_each(source)

    def _begin_each(self, source: Iterator[T]) -> Iterator[T]:
        """Begin and yield each micro-batch, except those that a resumed window has already added."""
        counter, coordinator = self._counter, self._coordinator
        for number, micro_batch in enumerate(source, 1):
            if number <= counter.to_skip:
                continue
            if self._state != "open":
                self._require_open("micro_batches")
            if coordinator is not ALONE:
                coordinator.begin(last=number >= counter.expected)
            counter.begin(number)
            self._running = number - 1
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

        The pass begins with ``count`` divided by the window's first count. If counts are equal, hooks inside the
        graph therefore see the gradient of a plain ``loss.backward()``; otherwise they see a multiple of it.

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
        if type(count) is not int or not 0 < count < _LARGE:
            count = checked_count(loss, count, reduction, STEP if self._may_replay else UPDATE)
        counter, sums = self._counter, self._sums
        if counter.micro_batches > self._coordinator.own_micro_batches:
            counter.refuse_idle("backward")
            count = 0
        node, receiving = loss.grad_fn, None
        if into is not None or node is None:
            receiving = self._checked_receivers(loss, count, into)
        if name is None:
            name = counter.name()
        before = sums.by_name.get(name)
        later = before is not None and bool(before.contributions)
        if not later and self._scale is not None:
            self._scale.look_at(loss)
        checks = self._shared.loss_checks
        graph = (
            next_node_number.use() - checks.node_number,
            type(node),
            getattr(node, "_saved_reduction", None),
        )
        if checks.known.get((name, later)) == graph:
            sums.add(name, loss, count, reduction, retain_graph, receiving)
        else:
            sharded = self._coordinator.sharded is not None
            checks.check(
                name,
                loss,
                count,
                reduction,
                counter.expected,
                later,
                left_out=left_out,
                batch_norms=self._shared.batch_norms,
                traces=not (sharded or self._planned),
            )
            if name in checks.settled:
                checks.known[name, later] = graph
            with checks.clips.observed(() if sharded or name in checks.settled else sums.parameters):
                sums.add(name, loss, count, reduction, retain_graph, receiving)
            if later or counter.expected > 1:
                checks.clips.warn(self._name)
        checks.node_number = next_node_number.use()  # backward passes make nodes too
        counter.calls += 1
        if not counter.in_loop:
            counter.micro_batches = max(counter.micro_batches, len(sums.by_name[name].contributions))

    def _name(self, parameter: Tensor) -> str:
        return self._settings.models.name(parameter, self._settings.optimizers)

    def _checked_receivers(self, loss: Tensor, count: Count, into: Into | None) -> list[Tensor] | None:
        empty = not isinstance(count, Tensor) and count == 0
        receiving = None if into is None else self._receivers(into)
        if not loss.requires_grad and not empty:
            raise GraphError(
                "backward: loss has no graph: it was computed under no_grad, from .item() or .detach(), or only "
                "from frozen parameters. Compute it from the parameters with gradients enabled."
            )
        if receiving is not None and self._first and not empty:
            check_reached(loss, receiving, self._settings.models)
        return receiving

    def _receivers(self, into: Into) -> list[Tensor]:
        sharded = self._coordinator.sharded is not None
        return receivers(into, self._sums.parameters, self._settings.models, sharded=sharded)

    def backward_coupled(
        self,
        encode: Encode,
        micro_batches: Iterable[Any],
        loss_fn: Callable[[Any], Tensor],
        *,
        name: str | None = None,
        into: Into | None = None,
    ) -> None:
        """Add the gradient of a loss over all items of the window, using the memory of one micro-batch.

        The gradient is that of the unsplit batch, for any ``loss_fn``. Micro-batches are encoded without graphs.
        The loss, and its gradient with respect to the representations, are computed from the representations of all
        items. Then each micro-batch is encoded again, except the last one, whose graph was kept, and its part of
        that gradient is backpropagated. Dropout draws the same numbers both times. Buffers (running statistics),
        and parameters that no optimizer owns (a momentum encoder), change once.

        With several ranks, ``loss_fn`` receives the representations of all ranks, in rank order, and returns the
        same loss on each. A rank may have no micro-batch.

        Args:
            encode: takes a micro-batch and returns its representations: a tensor, or a tuple, dict or dataclass of
                tensors, with the items along dimension 0. A statistic of the whole micro-batch has size 1 along
                dimension 0; scalars, shape ``[]``, are stacked. Integer tensors, such as labels, are passed
                through.
            micro_batches: the micro-batches of the window: a list, or a window from :func:`windows`. All are kept
                in memory. To split a single batch, use a plan: ``[micro.data for micro in plan.split(batch)]``.
            loss_fn: takes the output of ``encode``, concatenated over micro-batches along dimension 0. Returns the
                loss, shape ``[]``, not divided by anything. Parameters that it uses, such as a temperature, get
                their gradient.
            name: the name of the loss, by default "coupled", "coupled 2" and so on. The loss is added to the
                update's other losses, coupled or ordinary.
            into: the same as for :meth:`Update.backward`.

        Raises:
            ShapeError: ``encode`` returns no tensors, or rows of micro-batches differ in shape or dtype; or the
                loss is not a floating scalar.
            GraphError: the loss does not depend on the representations, or they depend on no owned parameter.
            CountError: the window has no items.
            OptionError: ``micro_batches`` is one batch.
            UpdateError: ``encode`` returns different representations the second time, or changes a large parameter
                that earlier windows left unchanged; or the update is not open.
            RankError: ranks have different representations, or another rank has stopped.

        Example:
            >>> encoder = torch.nn.Linear(3, 2)
            >>> accumulator = Accumulator(torch.optim.SGD(encoder.parameters(), lr=0.1), model=encoder)
            >>> batch = torch.randn(8, 3)
            >>> with accumulator.update() as update:
            ...     update.backward_coupled(encoder, batch.split(2), lambda z: -torch.cdist(z, z).mean())
            >>> update.count, update.micro_batch_count
            (8, 4)

        Sources:
            Gao, Zhang, Han, Callan 2021, arXiv:2101.06983. The derivation: docs/coupled_losses.md.
        """
        self._require_open("backward_coupled")
        check_window(micro_batches, "backward_coupled")
        at, again = self._counter.micro_batches, 0 < self._coupled_at < self._counter.micro_batches
        self._coupled_at = at
        if name is None:
            name = "coupled" if not self._coupled else f"coupled {len(self._coupled) + 1}"
        loaded = name in self._sums.by_name and self._shared.unfinished is not None
        if again or name in self._coupled or (name in self._sums.by_name and not loaded):
            raise UpdateError(
                f"backward_coupled: this update already has a loss named {(self._coupled or [name])[-1]!r}. Call "
                "backward_coupled once for the whole window, outside the loop over micro-batches. Give any further "
                "loss a name: name='images'."
            )
        self._coupled.append(name)
        if loaded:
            return  # the loaded window already holds it
        add_coupled(
            self,
            encode,
            list(micro_batches),
            loss_fn,
            name,
            None if into is None else self._receivers(into),
        )

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
        if self._totals is not None:
            return self._totals.tallies
        return {name: loss_sum.tally() for name, loss_sum in self._sums.by_name.items()}

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
        return next((tally.count for tally in self.losses.values()), 0)

    @property
    def micro_batch_count(self) -> int:
        """The number of micro-batches so far on this rank."""
        begun = self._counter.micro_batches or self._coupled_micro_batches
        return int(min(begun, self._coordinator.own_micro_batches))

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

    def __repr__(self) -> str:
        number = self.micro_batch_count
        micro_batches = f"{number} micro-batch{'' if number == 1 else 'es'}"
        if self._stepped:
            return f"Update(step {self._step}, {micro_batches}, {self.count:,} items, loss {self.loss:.6g})"
        skipped = self._state == "closed" and self._norm is not None
        return f"Update({'skipped, without a step' if skipped else self._state}, {micro_batches})"


def register(hooks: OrderedDict[int, Any], hook: Callable[..., object]) -> RemovableHandle:
    """Register a hook; the returned handle removes it."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def watch_optimizers(state: TrainingState) -> None:
    """While ``state`` lives, make ``optimizer.step()`` raise in a window, and keep loaded moments unrounded."""
    in_use.add(state.settings.models)
    weakref.finalize(state, claims.pop, id(state), None)
    weak = weakref.ref(state)

    def refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        state = weak()
        if state is not None and state.open_update is not None and not state.stepping:
            raise UpdateError(
                "update: optimizer.step() was called inside the block, where the gradient sum is unfinished. "
                "Remove the call: the optimizer steps when the block ends."
            )

    for optimizer in state.settings.optimizers:
        try:
            handles = [optimizer.register_step_pre_hook(refuse)]
        except AttributeError:  # a wrapper around an optimizer, without torch's hooks
            continue
        for handle in (*handles, *keep_loaded_state_wide(optimizer)):
            weakref.finalize(state, handle.remove)  # an update may outlive the accumulator
