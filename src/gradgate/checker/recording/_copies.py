"""Record ``load_state_dict()`` of modules, and whether the loaded tensors are the module's own parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import ByIdentity
from gradgate.checker.recording._user_objects import is_a, named_parameters, pairs_of
from gradgate.checker.recording._writes import address_of
from gradgate.events import ModelLoaded, Site


class Copies:
    """Watches ``state_dict()`` and ``load_state_dict()`` of modules.

    ``state_dict()`` returns tensors that share the parameters' memory. Each call returns new tensor objects, which
    tell when it was made.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # a tensor of a state_dict -> the line that called state_dict(), and the number of steps before
        self._taken: ByIdentity[Tensor, tuple[Site, int]] = ByIdentity()

    def taken(self, *_: Any, **__: Any) -> Around:
        """Remember when a state was taken."""
        state = yield
        recorder = self._recorder
        site, steps = recorder.site(), recorder.steps
        known = recorder.parameters.numbers.known
        for _, value in pairs_of(state) if site else ():
            if is_a(value, Tensor) and known(value) is None:
                self._taken.add(value, (site, steps))

    def loaded(self, module: Any, *args: Any, **kwargs: Any) -> Around:
        """Record that the user loads values into parameters that are or were in a loss or an optimizer."""
        recorder = self._recorder
        state = pairs_of(args[0] if args else kwargs.get("state_dict"))
        given = {key: value for key, value in state if type(key) is str and is_a(value, Tensor)}
        pairs = [(each, given[name]) for name, each in named_parameters(module) if name in given]
        ids = recorder.parameters.known(each for each, _ in pairs)
        if not ids or kwargs.get("assign"):
            return
        own = all(address_of(each) == address_of(value) != 0 for each, value in pairs)
        site, steps = next(
            filter(None, (self._taken.known(value) for _, value in pairs)), ((), recorder.steps)
        )
        yield
        recorder.add(ModelLoaded(recorder.site(), ids, own, site, recorder.steps - steps))
