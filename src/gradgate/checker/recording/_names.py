"""What the user calls a parameter, and which modules hold it."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.call_sites import library_frames, user_frames
from gradgate.checker.recording._modules import own_parameters
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import extent
from gradgate.checker.recording._variables import variables_of

_SCANS = 8  # times that all live modules are looked through
_SCANNED = (4, 16, 48)  # after these steps in any case


class Names:
    """Finds names in the variables of the running frames, while these run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen = 0
        self._scans = _SCANS

    def find(self, *, again: bool = False) -> None:
        """Name what has no name yet, if anything new has come up."""
        parameters = self._recorder.parameters
        for number, tensor in parameters.numbers.alive():
            if number in parameters.sights:
                parameters.sights[number].trainable = tensor.requires_grad
        if len(parameters.sights) == self._seen and not again and self._recorder.steps not in _SCANNED:
            return
        self._seen = len(parameters.sights)
        if self._scans:  # what a script makes in a function is gone when it ends
            self._scans -= 1
            self.finish()
        self._look_in(user_frames())
        if any(not sight.name for sight in parameters.sights.values()):
            self._look_in(library_frames())

    def _look_in(self, frames: list[FrameType]) -> None:
        for frame in frames:
            for name, value in variables_of(frame):
                self._name(name.removeprefix("self."), value)
                for inner, held in _fields(value) if name.startswith("self.") else ():
                    self._name(f"{name.removeprefix('self.')}.{inner}", held)

    def _name(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._name_module(name, value)
        elif isinstance(value, Tensor):
            self._name_tensor(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            for one in (value, *_inside(value)):
                known = self._recorder.optimizers.known(one)
                if known is not None:
                    self._recorder.optimizer_names.setdefault(known, name)
        elif isinstance(value, (list, tuple)) and len(value) < 1000:
            for place, item in enumerate(value):
                if isinstance(item, (Tensor, nn.Module)):
                    self._name(f"{name}[{place}]", item)
        elif isinstance(value, dict) and len(value) < 1000:
            for key, item in list(value.items()):
                if isinstance(item, (Tensor, nn.Module)) and isinstance(key, str):
                    self._name(f"{name}[{key!r}]", item)

    def _name_module(self, name: str, module: nn.Module) -> None:
        for inner, parameter in module.named_parameters(remove_duplicate=False):
            self._name_tensor(f"{name}.{inner.removeprefix('_orig_mod.')}", parameter, root=name)

    def _name_tensor(self, name: str, tensor: Tensor, root: str = "") -> None:
        parameters = self._recorder.parameters
        number = parameters.numbers.known(tensor)
        if number is None:
            return
        sight = parameters.sights[number]
        # The name from the outermost module that holds it says most.
        if not sight.name or (name.count(".") > sight.name.count(".") and root and "._" not in f".{root}"):
            sight.name, sight.root = name, root

    def finish(self) -> None:
        """See which parameters a live module holds now, and which are trainable."""
        parameters = self._recorder.parameters
        if not parameters.sights:
            return
        held = {id(one) for one in self._held(self._recorder.modules.alive())}
        for number, tensor in parameters.numbers.alive():
            sight = parameters.sights.get(number)
            if sight is None:  # another thread is about to meet it
                continue
            sight.registered = id(tensor) in held
            sight.trainable = tensor.requires_grad
            sight.shape, sight.nbytes = extent(tensor)

    @staticmethod
    def _held(modules: Iterable[nn.Module]) -> Iterable[Tensor]:
        for module in modules:
            yield from own_parameters(module)


def _inside(wrapper: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers that another one is wrapped around: a trainer's, which the user has the name of."""
    fields = list(getattr(wrapper, "__dict__", {}).values())
    return [held for held in fields if isinstance(held, torch.optim.Optimizer)]


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Return what an object of a plain class holds that may have parameters: a trainer's part, a callback."""
    if isinstance(value, (nn.Module, Tensor, torch.optim.Optimizer, type)) or callable(value):
        return []
    fields = getattr(value, "__dict__", None)
    pairs = list(fields.items()) if isinstance(fields, dict) else []
    return [pair for pair in pairs if isinstance(pair[1], (nn.Module, Tensor, torch.optim.Optimizer))]
