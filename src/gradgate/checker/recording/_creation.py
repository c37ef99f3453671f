"""Record how parameters and optimizers are created, extended and loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from gradgate.checker.recording._measures import same, sample
from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._user_objects import is_a, items_of, number_of
from gradgate.events import Group, OptimizerMade, Site, StateLoaded

_LOOKS_PER_LINE = 4  # close looks that a line may start by making parameters
_MOST_COMPARED = 64  # parameters whose values one optimizer leaves to the next


class Creation:
    """Watches the constructors of parameters and optimizers, and how optimizers are extended and loaded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looks: Counter[Site] = Counter()  # line that makes parameters -> close looks that it started

        # optimizer -> parameters that others hold, too; parameter -> sampled values after the last step
        self._shared: dict[int, list[int]] = {}
        self._left: dict[int, Tensor] = {}

    def begins(self, optimizer: int, pairs: Iterable[tuple[int, Tensor]]) -> dict[str, Any]:
        """Return a field of the first step's event: whether the values are those that the last optimizer left."""
        if optimizer in self._shared:
            return {}
        owners = self._recorder.parameters.owners
        several = [(number, each) for number, each in pairs if len(owners.get(number, ())) > 1]
        several = several[:: len(several) // _MOST_COMPARED + 1]
        self._shared[optimizer] = [number for number, _ in several]
        known = [(self._left[number], each) for number, each in several if number in self._left]
        return {"kept": all(same(left, sample(each)) for left, each in known)} if known else {}

    def ends(self, optimizer: int) -> None:
        """Remember the values that a step leaves, if other optimizers hold the parameters, too."""
        shared = self._shared.get(optimizer) or ()
        self._left |= {
            number: sample(each) for number, each in self._recorder.parameters.numbers.alive(shared)
        }

    def parameter(self, kind: Any, data: Any = None, *_: Any, **__: Any) -> Around:
        """Remember where a parameter was created."""
        parameter = yield
        if not is_a(parameter, Tensor):
            return
        recorder = self._recorder
        recorder.values.derived(parameter, data)
        site = recorder.site()
        # A line of the forward pass may make a parameter each time. It must not use up all close looks.
        if recorder.backwards and self._looks[site] < _LOOKS_PER_LINE:
            self._looks[site] += recorder.look_again()
        recorder.parameters.created(parameter, site, recorder.events.count)

    def copied(self, _: Tensor, __: Any) -> Around:
        """Remember that a parameter is a deep copy of another one."""
        copy = yield
        self._recorder.parameters.copied(copy)

    def optimizer(self, optimizer: Optimizer, *_: Any, **__: Any) -> Around:
        """Record that an optimizer was constructed."""
        yield
        self.meet(optimizer)
        if self._recorder.backwards:
            self._recorder.look_again()

    def meet(self, optimizer: Optimizer, *, added: bool = False) -> int:
        """Record an optimizer that is new to the watcher or gained a group. Return its number."""
        recorder = self._recorder
        recorder.wake()
        number = recorder.optimizers.number(optimizer)
        listed = Counter(recorder.parameters.number(each) for each in parameters_of(optimizer))
        groups = tuple(
            Group(
                recorder.parameters.ids(group["params"]),
                number_of(group.get("lr")),
                number_of(group.get("weight_decay")) or 0.0,
                _momentum(group),
            )
            for group in optimizer.param_groups
        )
        for each in listed:
            recorder.parameters.owners.setdefault(each, set()).add(number)
        twice = recorder.parameters.same(each for each, times in listed.items() if times > 1)
        recorder.add(OptimizerMade(recorder.site(), number, type(optimizer).__name__, groups, twice, added))
        return number

    def group(self, optimizer: Optimizer, *_: Any, **__: Any) -> Around:
        """Record that an optimizer gained a group. Ignore calls from the optimizer's own constructor."""
        yield
        if self._recorder.optimizers.known(optimizer) is not None:
            self.meet(optimizer, added=True)

    def state(self, optimizer: Optimizer, *_: Any, **__: Any) -> Around:
        """Record that an optimizer's state was loaded."""
        recorder, before = self._recorder, len(optimizer.state)
        yield
        number = recorder.optimizers.number(optimizer)
        recorder.add(StateLoaded(recorder.site(), number, before, len(optimizer.state)))


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _momentum(group: dict[str, Any]) -> float:
    """Return a group's momentum, or the first of Adam's betas."""
    betas = items_of(group.get("betas"))
    return number_of(group.get("momentum")) or (number_of(betas[0]) if betas else None) or 0.0
