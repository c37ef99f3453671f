"""Optimizers: how they are made, extended and loaded."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import Optimizer

from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._tracing import tracing
from gradgate.events import Group, OptimizerMade, StateLoaded


class Optimizers:
    """Watches the construction of optimizers, groups that are added, and states that are loaded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def install(self) -> None:
        """Stand around the class's methods."""
        patches = self._recorder.patches
        patches.wrap(Optimizer, "__init__", self._around_init)
        patches.wrap(Optimizer, "add_param_group", self._around_add)
        patches.wrap(Optimizer, "load_state_dict", self._around_load)

    def _around_init(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.active or tracing():
            original(optimizer, *args, **kwargs)
            return
        with recorder.library():
            original(optimizer, *args, **kwargs)
        with recorder.working():
            self.meet(optimizer)
            if recorder.backwards:
                recorder.look_again()

    def meet(self, optimizer: Optimizer, *, added: bool = False) -> int:
        """Record an optimizer that was made, or that is seen for the first time."""
        recorder = self._recorder
        number = recorder.optimizers.number(optimizer)
        held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        twice = {
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if held.count(id(parameter)) > 1
        } if len(set(held)) < len(held) else set()  # fmt: skip
        groups = tuple(
            Group(
                recorder.ids(group["params"]),
                number_of(group.get("lr")),
                float(group.get("weight_decay") or 0.0),
                float(group.get("momentum") or (group.get("betas") or (0.0,))[0]),
            )
            for group in optimizer.param_groups
        )
        for group in groups:
            recorder.parameters.owned |= group.parameters
        recorder.add(
            OptimizerMade(
                recorder.site(), number, type(optimizer).__name__, groups, recorder.ids(twice), added
            )
        )
        return number

    def _around_add(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        recorder = self._recorder
        if recorder.active and not tracing() and recorder.optimizers.known(optimizer) is not None:
            with recorder.working():
                self.meet(optimizer, added=True)

    def _around_load(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        before = len(optimizer.state)
        with recorder.library():
            original(optimizer, *args, **kwargs)
        if recorder.active:
            with recorder.working():
                number = recorder.optimizers.number(optimizer)
                recorder.add(StateLoaded(recorder.site(), number, before, len(optimizer.state)))


def number_of(value: Any) -> float | None:
    """Return a setting as a number, where it is one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
