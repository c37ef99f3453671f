"""Find what changes although no step trains it: statistics of batch norms, averages and copies."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gradgate.checker.recording._measures import same, sample, statistics_drift
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import Numbers, is_sharded
from gradgate.checker.recording._user_objects import is_a, own_buffers, own_parameters
from gradgate.events import StatisticsMoved
from gradgate.torch_compat import tensor_version

_MOST_UNOWNED = 512  # parameters outside optimizers whose values are compared
_NORM_STEPS = (2, 8, 32)  # steps that are followed by a search for new batch norms, as are new optimizers


class Drift:
    """Compares batch norms and the parameters that no optimizer trains, step by step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._norms: Numbers[nn.Module] = Numbers()
        self._versions: dict[int, int] | None = None  # batch norm -> version of its statistics
        self._optimizers = 0  # number of optimizers at the last search
        # batch norm -> running mean and variance when the watcher found it
        self._first: dict[int, tuple[Tensor, Tensor]] = {}
        self._values: dict[int, Tensor] = {}  # samples of parameters that no optimizer holds
        self._moved: int | None = None  # the last parameter seen to change, which is looked at further

    def look(self) -> None:
        """After a step, find the parameters and batch norms that changed."""
        self._norm_statistics()
        self.who_moves()

    def _norm_statistics(self) -> None:
        """Record the batch norms whose statistics changed although their parameters are not being trained."""
        recorder, parameters = self._recorder, self._recorder.parameters
        optimizers = len(recorder.optimizers)
        if self._versions is None or recorder.steps in _NORM_STEPS or optimizers > self._optimizers:
            self._versions, self._optimizers = self._versions or {}, optimizers
            for _, module in recorder.modules.alive():
                if is_a(own_buffers(module).get("num_batches_tracked"), Tensor):
                    number = self._norms.number(module)
                    self._versions.setdefault(number, _version(module))
                    if number not in self._first and (statistics := _statistics(module)) is not None:
                        self._first[number] = statistics
        for number, module in self._norms.alive():
            before, now = self._versions[number], _version(module)
            self._versions[number] = now
            own = own_parameters(module)
            if now == before or not own:
                continue
            numbers = parameters.known(own)
            trained = not (numbers.isdisjoint(parameters.owners) and numbers.isdisjoint(parameters.reached))
            frozen = not any(parameter.requires_grad for parameter in own)
            if not trained or frozen:
                drift = statistics_drift(self._first.get(number), _statistics(module))
                recorder.add(StatisticsMoved(recorder.site(), parameters.ids(own), drift))

    def who_moves(self) -> None:
        """Note which parameters change although no optimizer trains them: averages, copies, updates by hand.

        Before the first step, such a change counts as a step: later graphs should not reach back before it.
        """
        parameters, unstepped = self._recorder.parameters, not self._recorder.steps
        unowned = [
            (number, tensor)
            for number, tensor in parameters.numbers.alive()
            if unstepped or number not in parameters.owners or not tensor.requires_grad
            if not is_sharded(tensor)
        ]
        for number, tensor in unowned[:_MOST_UNOWNED]:
            if not parameters.records[number].still and number != self._moved:
                self._values.pop(number, None)
                continue
            now = sample(tensor)
            if not same(self._values.setdefault(number, now), now):
                parameters.records[number].still = False
                self._values[number], self._moved = now, number
                if unstepped:
                    self._recorder.thread.last_key = self._recorder.thread.newest_key


def _statistics(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Return samples of a batch norm's running means and variances."""
    buffers = own_buffers(module)
    if "running_mean" not in buffers or "running_var" not in buffers:
        return None
    return sample(buffers["running_mean"]), sample(buffers["running_var"])


def _version(module: Any) -> int:
    return tensor_version(own_buffers(module)["num_batches_tracked"])
