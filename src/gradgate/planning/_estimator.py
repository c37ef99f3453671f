"""Chooses the passes to trace, on fake or real tensors, and fits an estimate to them."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CellType, FrameType, FunctionType, GeneratorType
from typing import Any

from torch import distributed
from torch.optim import Optimizer

from gradgate.byte_sizes import format_bytes
from gradgate.errors import OptionError
from gradgate.planning._estimate import TOLERANCE, Estimate
from gradgate.planning._memory import FREE_MARGIN, ResidentMemory, free_bytes, in_one_line
from gradgate.planning._reachable_state import ReachableState
from gradgate.planning._samples import Samples
from gradgate.planning._trace import FakePassError, FakeTensors, PassTrace, trace_pass

_MOST_SAMPLES = 1021  # of a fake pass
_PROBE_SAMPLES = 3
_MEASURED_SAMPLES = 32  # the most samples in a real pass
_PROBE_STARTS = 10_000  # a real probe may take the time of starting this many operations,
_PROBE_BYTES = 1 << 26  # and this much memory, or this share of the budget
_PROBE_SHARE = 0.25
_REFINEMENTS = 3


class Estimator:
    """Traces passes of a loss function, and restores what they change.

    The budget covers a pass and all resident memory. If it is None, the budget is most of the free memory on the
    device of the passes, plus the resident memory that is already allocated. ``warnings`` collects what the user
    must know.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any], Any],
        samples: Samples,
        *,
        budget_bytes: int | None,
        optimizer: Optimizer | None,
    ) -> None:
        self._loss_fn, self._samples = loss_fn, samples
        self._given, self._optimizer = budget_bytes, optimizer
        self._free: int | None = None
        self._unchecked = ""
        self.warnings: list[str] = []
        self._lengths = _grid_lengths(samples)
        from gradgate.events import on_purpose  # lazily: training without the checker does not need it

        with on_purpose():  # so that the checker does not report reads of tensors
            self._state = ReachableState(loss_fn)
        self._fakes = FakeTensors()

    def estimate(self) -> Estimate:
        """Return the estimate, from real passes of small micro-batches if fake passes do not work."""
        reason = ""
        try:
            found = self._from_fake_passes()
            found.unchecked = self._unchecked
        except FakePassError as error:
            reason = str(error)
        self._remove_fakes()
        if reason:
            if self._state.gathers_over_ranks():
                raise OptionError(
                    f"plan: {reason}. Measuring real passes instead is not possible under fully_shard over several "
                    "ranks, which would wait for one another in different passes. Make loss_fn independent of "
                    "values: return the count as a tensor, for example, without .item()."
                )
            found = self._from_real_passes()
            found.measured = reason
        return found

    def budget(self, resident: ResidentMemory) -> int:
        """Return the memory for a pass and all resident memory together."""
        if self._given is not None:
            return self._given
        if self._free is None:
            self._free = int((1 - FREE_MARGIN) * free_bytes(resident.device))
        return self._free + resident.allocated_bytes

    def _from_fake_passes(self) -> Estimate:
        many = _coprime(min(max(2 * self._samples.count, 61), _MOST_SAMPLES))
        grid = [self._trace(many, length) for length in self._lengths]
        numbers = (many // 2 | 1, _PROBE_SAMPLES, 3 * many // 4, many // 4 | 1)
        # A length between two of the grid also confirms the fit over lengths.
        between = _length_between(self._samples, self._lengths)
        real = self._real_probe(grid[-1], between)
        probe = real or self._trace(numbers[0], between)
        found = Estimate(grid, probe)
        if not found.exact:
            found = self._refined(self._with_more(grid, probe, numbers, fake=True), probe)
        if real is not None and found.error() > TOLERANCE:
            fake, peak = self._trace(real.samples, real.length).peak_bytes, real.peak_bytes
            if abs(fake - peak) > TOLERANCE * peak:
                raise FakePassError(
                    f"a pass over {real.samples} samples took {format_bytes(peak)}, but "
                    f"{format_bytes(fake)} with fake tensors"
                )
        return found

    def _from_real_passes(self) -> Estimate:
        two = self._trace(2, self._lengths[-1], fake=False)
        # Many samples, because some kernels treat few samples specially, but no more than will surely fit.
        available = self.budget(two.resident) - two.resident.total_bytes
        most = min(max(available // 2 // max(two.peak_bytes, 1), 4), _MEASURED_SAMPLES)
        grid = [self._trace(most, length, fake=False) for length in self._lengths]
        numbers = (most // 2, 3 * most // 4, max(most // 4, 2))
        return self._with_more(grid, None, numbers, fake=False)

    def _with_more(
        self, grid: list[PassTrace], probe: PassTrace | None, numbers: Sequence[int], *, fake: bool
    ) -> Estimate:
        """Trace more numbers of samples until the fit predicts a pass it didn't use. Return the last estimate."""
        found = None
        for samples in numbers:
            if samples in {trace.samples for trace in grid}:
                continue
            try:
                grid = [*grid, *[self._trace(samples, length, fake=fake) for length in self._lengths]]
            except FakePassError:  # the loss cannot run with this many samples
                continue
            found = Estimate(grid, probe)
            if found.exact:
                break
        if found is None:
            raise FakePassError("no pass showed how its memory grows with the samples")
        return found

    def _refined(self, found: Estimate, probe: PassTrace) -> Estimate:
        """Trace the largest micro-batch that fits, until its size stays the same. Return the last estimate."""
        for _ in range(_REFINEMENTS):
            resident = found.resident.with_optimizer(self._optimizer)
            available = self.budget(resident) - resident.total_bytes
            (fits,) = found.most_samples(available, found.lengths[-1:], self._samples.count)
            if not found.uncertainty(available) or fits in (0, *(trace.samples for trace in found.grid)):
                break
            grid = [*found.grid, *[self._trace(fits, length) for length in found.lengths]]
            found = Estimate(grid, probe)
        return found

    def _real_probe(self, many: PassTrace, length: int) -> PassTrace | None:
        """Return a real pass of a few samples if it takes little time and memory. Otherwise note why not."""
        share, parameters = _PROBE_SAMPLES / many.samples, many.resident.parameter_bytes
        memory = share * many.peak_bytes + 2 * parameters
        work = share * many.work + parameters
        if memory > max(_PROBE_BYTES, _PROBE_SHARE * self.budget(many.resident)):
            self._unchecked = f"a real pass of {_PROBE_SAMPLES} samples would take too much memory"
        elif work > _PROBE_STARTS * many.start_flops:
            self._unchecked = f"a real pass of {_PROBE_SAMPLES} samples would take too long"
        elif distributed.is_available() and distributed.is_initialized():
            self._unchecked = "several ranks are running, so no real pass was run"
        else:
            self._remove_fakes()
            try:
                return self._trace(_PROBE_SAMPLES, length, fake=False)
            except Exception as error:  # noqa: BLE001 - the loss may need more samples; training shows others
                self._unchecked = f"a real pass of {_PROBE_SAMPLES} samples raised {in_one_line(error)}"
        return None

    def _trace(self, samples: int, length: int, *, fake: bool = True) -> PassTrace:
        trace = trace_pass(
            self._loss_fn,
            lambda: self._micro_batch(samples, length),
            self._state,
            fakes=self._fakes if fake else None,
            copies=self._samples.copies,
        )
        return replace(trace, samples=samples, length=length)

    def _micro_batch(self, samples: int, length: int) -> Any:
        among: Sequence[int] = range(self._samples.count)
        if self._samples.collates and self._samples.lengths is not None:  # raw samples cannot be trimmed
            lengths = self._samples.lengths.values
            fitting = [index for index in among if lengths[index] <= length]
            among = sorted(fitting, key=lambda index: -lengths[index])
        elif self._samples.collates:  # the same samples, for any micro-batch size
            among = among[:_PROBE_SAMPLES]
        return self._samples.take([among[index % len(among)] for index in range(samples)], length)

    def _remove_fakes(self) -> None:
        leaked = self._fakes.leaked()
        if not leaked:
            return
        self._fakes.created.clear()
        del leaked[20:]
        running = (CellType, FrameType, FunctionType, GeneratorType)
        holders = [holder for tensor in leaked for holder in gc.get_referrers(tensor) if holder is not leaked]
        kinds = dict.fromkeys(
            f"a {type(each).__qualname__}" for each in holders if not isinstance(each, running)
        )
        where = ", ".join(kinds) or "an object"
        self.warnings.append(
            f"plan: fake tensors of the estimate are left in {where}, which gg.plan cannot find from loss_fn. "
            "Training would fail on them. Clear this object after gg.plan, or keep it in a module, in a global "
            "name that loss_fn uses, or in a functools.lru_cache."
        )


def _coprime(number: int) -> int:
    """Return the largest number up to this one without factors 2, 3 and 5, which reveals rounding to multiples."""
    return next(each for each in range(number, 0, -1) if math.gcd(each, 30) == 1)


def _length_between(samples: Samples, lengths: Sequence[int]) -> int:
    """Return a length between the two shortest ``lengths``; for collated samples, that of a real sample."""
    between = sum(lengths[:2]) // len(lengths[:2])
    if samples.collates and samples.lengths is not None:
        return max(value for value in samples.lengths.values if value <= between)
    return between


def _grid_lengths(samples: Samples) -> list[int]:
    """Return up to three lengths, the shortest and the longest among them."""
    if samples.lengths is None:
        return [0]
    values = sorted(samples.lengths.values)
    least, most = min(max(values[0], 8), values[-1]), values[-1]  # many operations treat one column specially
    lengths = {least, (least + most) // 2, most}
    if samples.collates:  # samples of other lengths do not exist
        lengths = {next(value for value in values if value >= length) for length in lengths}
    return sorted(lengths)
