"""Chooses the passes to trace, on fake or real tensors, and fits an estimate to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import distributed
from torch.optim import Optimizer

from gradgate.byte_sizes import format_bytes
from gradgate.errors import OptionError
from gradgate.planning._estimate import Estimate
from gradgate.planning._fake_tensors import FakePassError, FakeTensors, holder_name
from gradgate.planning._pass_state import PassState
from gradgate.planning._resident_memory import FREE_MARGIN, ResidentMemory, free_bytes, in_one_line
from gradgate.planning._samples import Samples
from gradgate.planning._traced_pass import TracedPass, trace_pass

_FEW, _LEAST = 7, 3  # samples in the smallest fake passes
_MEASURED_SAMPLES = 32  # the most samples in a real pass
_PROBE_STARTS = 10_000  # a real probe may take the time of starting this many operations,
_PROBE_BYTES = 1 << 26  # and this much memory, or this share of the budget
_PROBE_SHARE = 0.25
_PROBE_ERROR = 0.01  # relative; a real probe that differs more contradicts the fake one
_REFINEMENTS = 8

Sizes = Iterable[tuple[int, int]]  # samples and length


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
        self.warnings: list[str] = []
        self._lengths = _grid_lengths(samples)
        from gradgate.events import on_purpose  # lazily: training without the checker does not need it

        with on_purpose():  # so that the checker does not report reads of tensors
            self._state = PassState(loss_fn)
        self._fakes = FakeTensors()

    def estimate(self) -> Estimate:
        """Return the estimate, from real passes of small micro-batches if fake passes do not work."""
        reason = ""
        try:
            estimate = self._from_fake_passes()
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
            estimate = self._from_real_passes()
            estimate.measured = reason
        return estimate

    def budget(self, resident: ResidentMemory) -> int:
        """Return the memory for a pass and all resident memory together."""
        if self._given is not None:
            return self._given
        if self._free is None:
            self._free = int((1 - FREE_MARGIN) * free_bytes(resident.device))
        return self._free + resident.allocated_bytes

    def _from_fake_passes(self) -> Estimate:
        longest, between = self._lengths[-1], _length_between(self._samples, self._lengths)
        passes = self._passes([(_FEW, longest), (_LEAST, between)])
        many = min(max(2 * self._samples.count, 61), 1021) | 1
        if len(passes) == 2 and 2 * passes[0].operations > 3 * passes[1].operations:
            many = 31  # a loop over the samples: fewer are faster
        passes += [self._trace(many, length) for length in self._lengths]
        stages = [
            (),
            ((_FEW, length) for length in self._lengths[:-1]),
            ((many // 2 | 1, length) for length in self._lengths),
            ((number | 1, length) for number in (3 * many // 4, many // 4) for length in self._lengths),
        ]
        estimate = self._fitted(passes, stages)
        probe = min(passes, key=lambda traced: traced.samples)
        estimate.unchecked = self._contradiction(probe)
        return estimate

    def _from_real_passes(self) -> Estimate:
        two = self._trace(2, self._lengths[-1], fake=False)
        # Many samples, because some kernels treat few samples specially, but no more than will surely fit.
        available = self.budget(two.resident) - two.resident.total_bytes
        most = min(max(available // 2 // max(two.peak_bytes, 1), 4), _MEASURED_SAMPLES)
        eighths = [(8, 4, 2), (6,), (5, 3)]
        numbers = [[max(most * number // 8, 2) for number in stage] for stage in eighths]
        stages = [((number, length) for number in stage for length in self._lengths) for stage in numbers]
        return self._fitted([], stages, fake=False)

    def _fitted(self, passes: list[TracedPass], stages: Sequence[Sizes], *, fake: bool = True) -> Estimate:
        """Trace more passes until the fit agrees with one that it does not need, or near the size that fits."""
        estimate = None
        for stage in stages:
            passes += self._passes(stage, passes, fake=fake)
            estimate = Estimate(passes)
            if estimate.exact:
                return estimate
        if estimate is None or not estimate.fitted:
            raise FakePassError("no pass showed how its memory grows with the samples")
        resident = estimate.resident.with_optimizer(self._optimizer)
        available = self.budget(resident) - resident.total_bytes
        for _ in range(_REFINEMENTS):
            most, safe = self._samples.count, available
            if not fake:  # a real pass must not run out of memory
                most, safe = min(most, 2 * max(traced.samples for traced in passes)), available // 2
            (fits,) = estimate.most_samples(safe, self._lengths[-1:], most)
            if fits in (0, *(traced.samples for traced in passes)):
                break
            near = [traced for traced in passes if traced.samples <= 2 * fits]
            near += self._passes([(fits, length) for length in self._lengths], fake=fake)
            finer = Estimate(near, near=True)
            if not finer.fitted:
                break
            estimate, passes = finer, near
        return estimate

    def _passes(
        self, sizes: Sizes, before: Iterable[TracedPass] = (), *, fake: bool = True
    ) -> list[TracedPass]:
        """Trace passes of some sizes that were not traced ``before``. A loss may not run with few samples."""
        known = {(traced.samples, traced.length) for traced in before}
        passes = []
        for samples, length in sizes:
            if (samples, length) not in known:
                try:
                    passes.append(self._trace(samples, length, fake=fake))
                except FakePassError:
                    continue
        return passes

    def _contradiction(self, probe: TracedPass) -> str:
        """Compare a fake pass of a few samples with a real one, if that takes little time and memory.

        Returns:
            Why there was no real pass; "" if there was.

        Raises:
            FakePassError: the real pass took more or less memory.
        """
        parameters, what = probe.resident.parameter_bytes, f"a real pass of {probe.samples} samples"
        if probe.peak_bytes + 2 * parameters > max(_PROBE_BYTES, _PROBE_SHARE * self.budget(probe.resident)):
            return f"{what} would take too much memory"
        if probe.work + parameters > _PROBE_STARTS * probe.start_flops:
            return f"{what} would take too long"
        if distributed.is_available() and distributed.is_initialized():
            return "several ranks are running, so no real pass was run"
        self._remove_fakes()
        try:
            peak = self._trace(probe.samples, probe.length, fake=False).peak_bytes
        except Exception as error:  # noqa: BLE001 - a loss function may raise anything
            return f"{what} raised {in_one_line(error)}"
        if abs(probe.peak_bytes - peak) > _PROBE_ERROR * peak:
            raise FakePassError(
                f"a pass over {probe.samples} samples took {format_bytes(peak)}, but "
                f"{format_bytes(probe.peak_bytes)} with fake tensors"
            )
        return ""

    def _trace(self, samples: int, length: int, *, fake: bool = True) -> TracedPass:
        return trace_pass(
            self._loss_fn,
            lambda: self._micro_batch(samples, length),
            self._state,
            self._fakes if fake else None,
            samples=samples,
            length=length,
            copies=self._samples.copies,
        )

    def _micro_batch(self, samples: int, length: int) -> Any:
        among: Sequence[int] = range(self._samples.count)
        if self._samples.collates and self._samples.lengths is not None:  # raw samples cannot be trimmed
            lengths = self._samples.lengths.values
            fitting = [index for index in among if lengths[index] <= length]
            among = sorted(fitting, key=lambda index: -lengths[index])
        elif self._samples.collates:  # the same samples, for any micro-batch size
            among = among[:_LEAST]
        return self._samples.take([among[index % len(among)] for index in range(samples)], length)

    def _remove_fakes(self) -> None:
        leaked = self._fakes.take_leaked()
        if not leaked:
            return
        del leaked[20:]
        names = list(dict.fromkeys([holder_name(tensor, {id(leaked)}) for tensor in leaked]))
        where = ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])
        self.warnings.append(
            f"plan: fake tensors of the estimate are left in {where}, which gg.plan cannot find from loss_fn. "
            "Training would fail on them. Clear this object after gg.plan, or keep it in a module, in a global "
            "name that loss_fn uses, or in a functools.lru_cache."
        )


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
