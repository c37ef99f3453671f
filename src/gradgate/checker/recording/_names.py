"""What the user calls each parameter, and which modules hold it."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.call_sites import library_frames, user_frames
from gradgate.checker.recording._modules import own_parameters
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import size_of
from gradgate.checker.recording._variables import variables_of

_SCANS = 8  # times that all live modules are looked through
_SCANNED = (4, 16, 48)  # after these steps in any case
_MOST_ITEMS = 1000  # of a list or dict that is looked through
_NAMED = (nn.Module, Tensor, torch.optim.Optimizer)


class Names:
    """Finds names in the variables of running frames."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen = 0
        self._scans = _SCANS

    def find(self) -> None:
        """Name what has no name yet, if anything is new."""
        records = self._recorder.parameters.records
        for number, tensor in self._recorder.parameters.numbers.alive():
            if number in records:
                records[number].trainable = tensor.requires_grad
        if len(records) == self._seen and self._recorder.steps not in _SCANNED:
            return
        self._seen = len(records)
        if self._scans:  # what a function makes is gone when it returns
            self._scans -= 1
            self.finish()
        self._look_in(user_frames())
        if any(not record.name for record in records.values()):
            self._look_in(library_frames())  # a trainer holds the model

    def _look_in(self, frames: list[FrameType]) -> None:
        for frame in frames:
            for path, value in variables_of(frame):
                name = path.removeprefix("self.")
                self._name(name, value)
                for inner, held in _fields(value) if path.startswith("self.") else ():
                    self._name(f"{name}.{inner}", held)

    def _name(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            for inner, parameter in value.named_parameters(remove_duplicate=False):
                self._name_tensor(f"{name}.{inner.removeprefix('_orig_mod.')}", parameter, root=name)
        elif isinstance(value, Tensor):
            self._name_tensor(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            # An optimizer may wrap others: a trainer's, of which the user has the name.
            inside = [held for held in vars(value).values() if isinstance(held, torch.optim.Optimizer)]
            for optimizer in (value, *inside):
                known = self._recorder.optimizers.known(optimizer)
                if known is not None:
                    self._recorder.optimizer_names.setdefault(known, name)
        else:
            for key, item in _items(value):
                if isinstance(item, (Tensor, nn.Module)):
                    self._name(f"{name}[{key!r}]", item)

    def _name_tensor(self, name: str, tensor: Tensor, root: str = "") -> None:
        number = self._recorder.parameters.numbers.known(tensor)
        if number is None:
            return
        record = self._recorder.parameters.records[number]
        # The name from the outermost module that holds it says most.
        if not record.name or (name.count(".") > record.name.count(".") and root and "._" not in f".{root}"):
            record.name, record.root = name, root

    def finish(self) -> None:
        """Note which parameters a live module holds now, and which are trainable."""
        parameters, modules = self._recorder.parameters, self._recorder.modules
        if not parameters.records:
            return
        held = {id(each) for module in modules.alive() for each in own_parameters(module)}
        for number, tensor in parameters.numbers.alive():
            record = parameters.records.get(number)
            if record is None:  # another thread is about to add it
                continue
            record.registered = id(tensor) in held or not modules.complete
            record.trainable = tensor.requires_grad
            record.shape, record.nbytes = size_of(tensor)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a list, a tuple, or a dict with strings as keys."""
    if isinstance(value, (list, tuple)) and len(value) < _MOST_ITEMS:
        yield from enumerate(value)
    elif isinstance(value, dict) and len(value) < _MOST_ITEMS:
        yield from ((key, item) for key, item in list(value.items()) if isinstance(key, str))


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of a plain object that may have parameters: a part of a trainer, a callback."""
    if isinstance(value, (*_NAMED, type)) or callable(value):
        return []
    fields = getattr(value, "__dict__", None)
    pairs = list(fields.items()) if isinstance(fields, dict) else []
    return [pair for pair in pairs if isinstance(pair[1], _NAMED)]
