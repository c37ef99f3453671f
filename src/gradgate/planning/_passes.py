"""Which passes are followed: on fake tensors and once for real, or where that cannot be, small real ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import distributed
from torch.optim import Optimizer

from gradgate.errors import EstimateWarning
from gradgate.planning._budget import written
from gradgate.planning._estimate import AGREE, Estimate, Pass, work_of
from gradgate.planning._follower import FakePassError, Fakes, TooLongError
from gradgate.planning._leaks import clear_caches, holders
from gradgate.planning._samples import Samples
from gradgate.planning._surroundings import Surroundings
from gradgate.planning._trace import trace_fake, trace_real

START_FLOPS = {"cpu": 4e5, "cuda": 1e8}  # that take as long as to start one operation
_MANY = 61, 1021  # samples of a fake pass: twice as many as the batch has, within these
_FEW = 3  # and of the pass that is compared with it
_MOST_OPERATIONS = 20_000  # with many samples: else each of them is gone through by itself
_MEASURED = 32  # samples at most, where a pass is run and measured
_NAMED = 20  # fake tensors whose holders are looked for
_LOOKS = 3  # at most, at what would be run
_QUICK = 10_000  # a real pass may take as long as to start so many operations,
_SMALL = 1 << 26  # and so many bytes, or this share of what there is
_SHARE = 0.25

Follow: TypeAlias = Callable[[int, int], Pass]


class Passes:
    """Follows passes of a loss function, and leaves nothing of them behind.

    Args:
        loss_fn: returns the loss of a micro-batch, or the loss and its count.
        samples: the batch.
        budget_bytes: what a pass may take, and all that stands beside it.
        optimizer: whose state is counted.
        device: on which most is computed.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any], Any],
        samples: Samples,
        *,
        budget_bytes: float,
        optimizer: Optimizer | None,
        device: torch.device,
    ) -> None:
        self._loss_fn, self._samples = loss_fn, samples
        self._budget, self._optimizer = budget_bytes, optimizer
        self._start_flops = START_FLOPS.get(device.type, 1e8)
        self._lengths = _some_lengths(samples)
        from gradgate.events import on_purpose  # what trains without being watched does without it

        with on_purpose():  # tensors are looked at, and no value leaves a graph
            self._surroundings = Surroundings(loss_fn)
        self._fakes = Fakes()

    def estimate(self) -> tuple[Estimate, str]:
        """Return the memory of any micro-batch; and why, if small micro-batches were run and measured."""
        try:
            found, reason = self._on_fakes(), ""
        except FakePassError as error:
            found, reason = None, str(error)
        self._clear_fakes()
        return found or self._measured(), reason

    def _on_fakes(self) -> Estimate:
        many = _coprime(min(max(2 * self._samples.count, _MANY[0]), _MANY[1]))
        try:
            grid = [self._fake(many, length, _MOST_OPERATIONS) for length in self._lengths]
        except TooLongError:
            many = 13
            grid = [self._fake(many, length) for length in self._lengths]
        numbers: tuple[int, ...] = (many // 2 | 1, _FEW, 3 * many // 4, many // 4 | 1)
        # Between the lengths, if there are several: so it confirms what is known of these, too.
        between = _between(self._samples, self._lengths)
        real = self._real_probe(grid[-1], between)
        probe = real or self._fake(numbers[0], between)
        found = Estimate(grid, probe, checked=real is not None)
        if (
            grid[0].trace.operations > 2 * probe.trace.operations
        ):  # each sample has its own: the fewer, the quicker
            numbers = (7, 13, 31)
        if not found.exact:
            found = self._with_more(grid, probe, numbers, self._fake, checked=real is not None)
            found = self._where_it_matters(found, probe)
        if real is not None and found.off() > AGREE:
            fake, peak = self._fake(real.samples, real.length).trace.peak_bytes, real.trace.peak_bytes
            if abs(fake - peak) > AGREE * peak:
                raise FakePassError(
                    f"a pass of {real.samples} samples held {written(peak)}, and {written(fake)} on fake tensors"
                )
        return found

    def _with_more(
        self, grid: list[Pass], probe: Pass | None, numbers: Sequence[int], follow: Follow, *, checked: bool
    ) -> Estimate:
        """Follow passes of more numbers of samples, until polynomials give one that they were not fitted to."""
        found = None
        for samples in numbers:
            if samples in {each.samples for each in grid}:
                continue
            try:
                grid = [*grid, *[follow(samples, length) for length in self._lengths]]
            except FakePassError:  # so many the loss cannot do with
                continue
            found = Estimate(grid, probe, checked=checked)
            if found.exact:
                break
        if found is None:
            raise FakePassError("how its memory grows with the samples cannot be found")
        return found

    def _where_it_matters(self, found: Estimate, probe: Pass) -> Estimate:
        """Follow what would be run, as long as that changes how much fits."""
        for _ in range(_LOOKS):
            room = self._budget - found.standing.beside(self._optimizer).total_bytes
            fits = min(found.most_samples(room, found.lengths[-1:])[0], self._samples.count)
            if not found.doubt(room) or fits in (0, *(each.samples for each in found.grid)):
                break
            grid = [*found.grid, *[self._fake(fits, length) for length in found.lengths]]
            found = Estimate(grid, probe, checked=found.checked)
        return found

    def _real_probe(self, many: Pass, length: int) -> Pass | None:
        """Run a pass of few samples, where that takes next to nothing."""
        share, parameters = _FEW / many.samples, many.trace.standing.parameter_bytes
        held = share * many.trace.peak_bytes + 2 * parameters
        work = share * work_of(many.trace) + parameters
        too_large = held > max(_SMALL, _SHARE * self._budget) or work > _QUICK * self._start_flops
        if too_large or (distributed.is_available() and distributed.is_initialized()):
            return None
        self._clear_fakes()
        try:
            return self._real(_FEW, length)
        except Exception:  # noqa: BLE001 - so few the loss cannot do with; or what is wrong shows itself in training, too
            return None

    def _measured(self) -> Estimate:
        two = self._real(2, self._lengths[-1])
        # Few samples are a special case for some kernels; but no more than what is sure to fit.
        most = min(max(int(self._budget / 2 / max(two.trace.peak_bytes, 1)), 4), _MEASURED)
        grid = [self._real(most, length) for length in self._lengths]
        numbers = (most // 2, 3 * most // 4, max(most // 4, 2))
        return self._with_more(grid, None, numbers, self._real, checked=True)

    def _fake(self, samples: int, length: int, most_operations: float = math.inf) -> Pass:
        trace = trace_fake(
            self._loss_fn,
            self._maker(samples, length),
            self._fakes,
            self._surroundings,
            copies=self._samples.copies,
            most_operations=most_operations,
        )
        return Pass(samples, length, trace)

    def _real(self, samples: int, length: int) -> Pass:
        data = self._maker(samples, length)
        trace = trace_real(self._loss_fn, data, self._surroundings, copies=self._samples.copies)
        return Pass(samples, length, trace)

    def _maker(self, samples: int, length: int) -> Callable[[], Any]:
        among: Sequence[int] = range(self._samples.count)
        if self._samples.raw and self._samples.lengths is not None:  # they are as long as they are
            lengths = self._samples.lengths.values
            among = sorted(
                (index for index in among if lengths[index] <= length), key=lambda index: -lengths[index]
            )
        elif self._samples.raw:  # the same ones, for any number of them
            among = among[:_FEW]
        return lambda: self._samples.take([among[place % len(among)] for place in range(samples)], length)

    def _clear_fakes(self) -> None:
        left = self._fakes.left()
        if left:
            clear_caches(left)
            del left
            left = self._fakes.left()
        if left:
            self._fakes.made.clear()
            del left[_NAMED:]
            where = ", ".join(holders(left))
            warnings.warn(
                f"plan: fake tensors of the estimate are left in {where}, to which loss_fn does not lead. Training "
                "would fail on them: clear that after gg.plan, or hold it in a module, in a global name that "
                "loss_fn uses, or with functools.lru_cache.",
                EstimateWarning,
                stacklevel=2,
            )


def _coprime(number: int) -> int:
    """Return the largest number up to this one that 2, 3 and 5 do not divide: what is rounded to these shows."""
    return next(each for each in range(number, 0, -1) if math.gcd(each, 30) == 1)


def _between(samples: Samples, lengths: Sequence[int]) -> int:
    """Return a length between the two least, or the only one; of raw samples one that there is."""
    between = sum(lengths[:2]) // len(lengths[:2])
    if samples.raw and samples.lengths is not None:
        return max(value for value in samples.lengths.values if value <= between)
    return between


def _some_lengths(samples: Samples) -> list[int]:
    """Return up to three lengths between which the others lie."""
    if samples.lengths is None:
        return [0]
    values = sorted(samples.lengths.values)
    least, most = min(max(values[0], 8), values[-1]), values[-1]  # one column is special for many operations
    some = {least, (least + most) // 2, most}
    if samples.raw:  # there are no others than these
        some = {next(value for value in values if value >= length) for length in some}
    return sorted(some)
