"""Find the user's name for each parameter, and which parameters modules hold."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.call_sites import library_frames, user_frames
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import shape_and_bytes
from gradgate.checker.recording._user_objects import (
    children_of,
    fields_of,
    is_a,
    key_text,
    named_parameters,
    own_buffers,
    own_parameters,
    pairs_of,
    parameters_in,
    tensors_in,
)

_SCANS = 8  # number of searches for the parameters that modules hold
_SCANNED = (4, 16, 48)  # steps that are always followed by a search
_MOST_ITEMS = 1000  # longer lists and dicts are not searched
# A function that uses one of these names may hold the dict of its locals, and our reading would change the dict.
_LOCALS = frozenset(("locals", "vars", "eval", "exec", "f_locals"))
# pytest rewrites every assert so that a failure calls locals(). An assert that passes makes no such call.
_REWRITTEN = "@py_builtins"
_REFERENCES = 3  # references to the dict of locals: the frame's, our variable, and getrefcount's argument
_OPTIMIZED = 1  # CO_OPTIMIZED: set for the code of a function, not for that of a module or class body
_NAMED = (nn.Module, Tensor, torch.optim.Optimizer)
_MISSPELLED = (
    *("require_grad", "requires_grads", "require_grads", "required_grad"),
    *("requires_gradient", "require_gradient"),
)
_FIRST = "self"


class Names:
    """Finds names in the variables of running frames."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen = 0, 0  # parameters and optimizers at the last search
        self._scans = _SCANS

    def find(self) -> None:
        """Name new parameters and optimizers."""
        records = self._recorder.parameters.records
        for number, tensor in self._recorder.parameters.numbers.alive():
            if number in records:
                records[number].trainable = tensor.requires_grad
        seen = len(records), len(self._recorder.optimizers)
        if seen == self._seen and self._recorder.steps not in _SCANNED:
            return
        self._seen = seen
        frames = user_frames()
        self._look_in(frames)
        if self._unnamed():
            frames += library_frames()  # possibly only a trainer holds the model
            self._look_in(frames)
        for frame in frames if self._unnamed() else ():
            value = dict(_locals_of(frame)).get(_FIRST)
            if is_a(value, nn.Module):
                self._name(_FIRST, value)
        if unnamed := self._unnamed():
            self._look_in_modules(frames, unnamed)
        if self._scans:  # later, a function's local modules may be gone
            self._scans -= 1
            self.finish()

    def _unnamed(self) -> set[int]:
        return {number for number, each in self._recorder.parameters.records.items() if not each.name}

    def _look_in(self, frames: list[FrameType]) -> None:
        for frame in frames:
            variables = list(variables_of(frame))
            # IPython keeps displayed values in a dict under the names _oh and Out. Its names come last.
            private = {id(value) for path, value in variables if path[:1] == "_" and is_a(value, dict)}
            variables.sort(key=lambda pair: pair[0][:1] == "_" or id(pair[1]) in private)
            for path, value in variables:
                if path == _FIRST:
                    continue
                name = path.removeprefix("self.")
                self._name(name, value)
                for inner, held in _parts(value) if path.startswith("self.") else ():
                    self._name(f"{name}.{inner}", held)

    def _look_in_modules(self, frames: list[FrameType], unnamed: set[int]) -> None:
        """Name what modules hold without registering it: layers in plain lists, plain tensors."""
        values = (pair for frame in frames for pair in variables_of(frame) if is_a(pair[1], nn.Module))
        fields = (pair for path, value in values for pair in _plain_fields(value, path.removeprefix("self.")))
        for path, several in fields:
            if is_a(several, Tensor):
                self._name_tensor(path, several)
            for key, item in pairs_of(several, _MOST_ITEMS):
                held = parameters_in(item) if is_a(item, nn.Module) else tensors_in(item)
                if not unnamed.isdisjoint(self._recorder.parameters.known(held)):
                    self._name(f"{path}[{key_text(key)}]", item)

    def _name(self, name: str, value: Any) -> None:
        if is_a(value, nn.Module):
            self._recorder.modules.meet(value)
            for inner, parameter in named_parameters(value):
                self._name_tensor(f"{name}.{inner.removeprefix('_orig_mod.')}", parameter, root=name)
        elif is_a(value, Tensor):
            self._name_tensor(name, value)
        elif is_a(value, torch.optim.Optimizer):
            # The user's variable may hold a trainer's wrapper around the real optimizer.
            inside = [held for held in list(fields_of(value).values()) if is_a(held, torch.optim.Optimizer)]
            for optimizer in (value, *inside):
                known = self._recorder.optimizers.known(optimizer)
                if known is not None:
                    self._recorder.optimizer_names.setdefault(known, name)
        elif len(pairs := pairs_of(value, _MOST_ITEMS)) < _MOST_ITEMS:
            for key, item in pairs:
                if type(key) in (str, int) and is_a(item, Tensor, nn.Module):
                    self._name(f"{name}[{key!r}]", item)

    def _name_tensor(self, name: str, tensor: Tensor, root: str = "") -> None:
        number = self._recorder.parameters.numbers.known(tensor)
        if number is None:
            return
        record = self._recorder.parameters.records[number]
        # Prefer the name that starts at the outermost module.
        if not record.name or (name.count(".") > record.name.count(".") and root and "._" not in f".{root}"):
            record.name, record.root = name, root

    def finish(self) -> None:
        """Note which parameters are held by a live module, and which are trainable."""
        parameters, modules = self._recorder.parameters, self._recorder.modules
        if not parameters.records:
            return
        held = {id(each) for _, module in modules.alive() for each in own_parameters(module)}
        for number, tensor in parameters.numbers.alive():
            record = parameters.records.get(number)
            if record is None:  # another thread is about to add it
                continue
            if id(tensor) in held:
                parameters.held.add(number)
            # If a parameter and its module are older than the watcher, and no variable leads to the module, the
            # module is unknown.
            unknown = record.made_at < 0 and number not in parameters.held and is_a(tensor, nn.Parameter)
            record.registered = id(tensor) in held or unknown
            record.trainable = tensor.requires_grad
            record.dtype = str(tensor.dtype).removeprefix("torch.")
            record.shape, record.nbytes = shape_and_bytes(tensor)
            record.misfrozen = record.misfrozen or _set_to_false(tensor, _MISSPELLED)
        # ``module.requires_grad = False`` is a mistake: it sets a new attribute that torch never reads.
        for _, module in modules.alive():
            name = _set_to_false(module, ("requires_grad", *_MISSPELLED))
            for number in parameters.known(parameters_in(module)) if name else ():
                parameters.records[number].misfrozen = name


def _set_to_false(thing: Any, names: tuple[str, ...]) -> str:
    fields = fields_of(thing)
    return next((name for name in names if fields.get(name) is False), "")


def _plain_fields(module: nn.Module, name: str, depth: int = 8) -> Iterator[tuple[str, Any]]:
    """Yield the lists, dicts and tensors that a module and its descendants hold, named like "model.mlp.layers"."""
    for field, held in (*fields_of(module).items(), *own_buffers(module).items()):
        if field[:1] != "_" and (pairs_of(held, 1) or is_a(held, Tensor)):
            yield f"{name}.{field}", held
    for child, inner in children_of(module) if depth else ():
        yield from _plain_fields(inner, f"{name}.{child}", depth - 1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return the modules, tensors and optimizers in a plain object's attributes, such as a callback's."""
    if is_a(value, *_NAMED, type) or callable(value):
        return []
    return [pair for pair in list(fields_of(value).items()) if is_a(pair[1], *_NAMED)]


def variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame as (name, value), and their attributes under names like "self.total"."""
    pairs = _locals_of(frame)
    yield from pairs
    for name, value in pairs:
        if not is_a(value, type, ModuleType, FunctionType):
            private = is_a(value, nn.Module)  # for a module, skip _parameters, _modules and the like
            for inner, held in list(fields_of(value).items()):
                if not private or inner[:1] != "_":
                    yield f"{name}.{inner}", held


def _locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a frame as (name, value).

    Up to Python 3.12, reading a function's locals fills the frame's own dict, which ``locals()`` also returns. A
    full dict would keep alive objects that the function releases, so this function empties the dict again. If the
    watched function may use the dict itself, no variables are returned.
    """
    code = frame.f_code
    if sys.version_info >= (3, 13) and code.co_flags & _OPTIMIZED:
        return list(frame.f_locals.items())
    if not code.co_flags & _OPTIMIZED:  # a class body may run in a mapping that the user defines
        names = frame.f_locals
        return list(names.items()) if type(names) is dict else []
    if _may_read_locals(code):
        return []
    names = frame.f_locals
    pairs = list(names.items())
    if sys.getrefcount(names) <= _REFERENCES:
        names.clear()
    return pairs


@functools.lru_cache(maxsize=256)
def _may_read_locals(code: CodeType) -> bool:
    """Return whether a function may use the dict of its locals. Methods such as ``model.eval`` don't count."""
    if _LOCALS.isdisjoint(code.co_names) or _REWRITTEN in code.co_names:
        return False
    return any(
        name == "f_locals" or (name in _LOCALS and not operation.startswith(("LOAD_ATTR", "LOAD_METHOD")))
        for operation, name in ((each.opname, each.argval) for each in dis.get_instructions(code))
        if isinstance(name, str)
    )
