"""Freezes parameters and modules, and restores their previous state.

Several handles may hold the same module, and several modules the same parameter; the last release unfreezes it.
``copy.deepcopy`` and ``pickle`` see modules and parameters as if they were not frozen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradgate.gates._parameters import parameters_now
from gradgate.torch_compat import (
    buffers_of,
    has_forward_hooks,
    parameters_of,
    unsaved_buffers,
    without_hooks,
)

_Buffers: TypeAlias = "tuple[nn.Module, dict[str, Tensor | None], dict[str, Tensor | None]]"
"""A module, its buffers by name, and the copies that it uses while it runs."""

_COPYING = ("__deepcopy__", "__reduce_ex__")  # looked up on the object itself before its class
_RESETS = "reset_running_stats"  # which `torch.optim.swa_utils.update_bn` calls on every batch norm
_REPLACED = ("train", _RESETS, *_COPYING)  # set on a frozen module itself, over the methods of its class


def _copying_within(thing: Any, unfrozen: Callable[[], AbstractContextManager[None]]) -> dict[str, Any]:
    """Return methods for an object, by name, with which it is deep-copied and pickled inside ``unfrozen()``."""

    def method(name: str) -> Callable[..., Any]:
        def copied(*args: Any) -> Any:
            with unfrozen():
                return getattr(type(thing), name)(thing, *args)

        return copied

    return {name: method(name) for name in _COPYING if hasattr(type(thing), name)}


@contextmanager
def _with_attributes(thing: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Replace an object's attributes inside the block."""
    own = vars(thing)
    object.__setattr__(thing, "__dict__", attributes)
    try:
        yield
    finally:
        object.__setattr__(thing, "__dict__", own)


class _FrozenParameter:
    """A parameter that requires no gradient as long as a frozen module holds it."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self.required = parameter.requires_grad
        self.holders = 0
        parameter.requires_grad_(False)
        self._gradient, parameter.grad = parameter.grad, None
        vars(parameter).update(_copying_within(parameter, self._unfrozen))

    @contextmanager
    def _unfrozen(self) -> Iterator[None]:
        attributes = {name: value for name, value in vars(self._parameter).items() if name not in _COPYING}
        with _with_attributes(self._parameter, attributes):
            self._parameter.requires_grad_(self.required)
            try:
                yield
            finally:
                self._parameter.requires_grad_(False)

    def release(self) -> None:
        """Unfreeze the parameter, unless another module holds it."""
        self.holders -= 1
        if self.holders:
            return
        _frozen_parameters.pop(id(self._parameter), None)
        for name in _COPYING:
            vars(self._parameter).pop(name, None)
        self._parameter.requires_grad_(self.required)
        gradient = self._gradient
        if gradient is not None:  # the model may have been moved or converted since
            gradient = gradient.to(self._parameter.device, self._parameter.grad_dtype)
        self._parameter.grad = gradient


_frozen_parameters: weakref.WeakValueDictionary[int, _FrozenParameter] = weakref.WeakValueDictionary()


class FrozenModule:
    """A module that one or several handles keep frozen. This object replaces the method ``module.train``."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._training, self._own_train = module.training, vars(module).get("train")
        # torch's own modules write no buffer in evaluation mode; hooks on them may.
        is_torchs = type(module).__module__.startswith("torch.nn.")
        self.may_write = bool(buffers_of(module) and (has_forward_hooks(module) or not is_torchs))
        self._parts: list[FrozenModule] = []
        self._hooks: list[RemovableHandle] = []
        self._passes: list[list[_Buffers]] = []
        self._inner = False  # a running parent module has made copies for this one
        self.holders = 0
        self._parameters: dict[str, _FrozenParameter] = {}
        vars(module).update(_copying_within(module, self._unfrozen), train=self)
        if hasattr(module, _RESETS):
            vars(module)[_RESETS] = lambda: None
        module.training = False

    def hold(self) -> None:
        """Add a handle; the first one freezes the parameters."""
        self.holders += 1
        if self.holders > 1:
            return
        for name, parameter in parameters_of(self._module).items():
            if parameter is not None:
                frozen = _frozen_parameters.get(id(parameter)) or _FrozenParameter(parameter)
                _frozen_parameters[id(parameter)] = frozen
                frozen.holders += 1
                self._parameters[name] = frozen

    def release(self) -> None:
        """Unfreeze the module, unless another handle holds it."""
        self.holders -= 1
        if self.holders:
            return
        for hook in self._hooks:
            hook.remove()
        while self._passes:  # left by an interrupt
            self._end_pass()
        for name in _REPLACED:
            vars(self._module).pop(name, None)
        if self._own_train is not None:
            vars(self._module)["train"] = self._own_train
        self._module.training = self._training
        for name, frozen in self._parameters.items():
            frozen.release()
            for parameter in parameters_now(self._module, name):
                if id(parameter) not in _frozen_parameters:
                    parameter.requires_grad_(frozen.required)

    def __call__(self, mode: bool = True) -> nn.Module:
        """Keep the module in evaluation mode; switch the mode of submodules that are not frozen."""
        if self._own_train is not None:
            self._own_train(mode)
        else:
            type(self._module).train(self._module, mode)
        self._module.training = False
        for child in self._module.children():
            # A batch norm in the place of a frozen one, as SyncBatchNorm.convert_sync_batchnorm makes.
            own = child.parameters(recurse=False) if hasattr(child, _RESETS) else ()
            if any(id(parameter) in _frozen_parameters for parameter in own):
                child.training = False
        return self._module

    def _unfrozen(self) -> AbstractContextManager[None]:
        """Return a context with the module's original mode and ``train`` method, and without gradgate's hooks."""
        attributes = {name: value for name, value in vars(self._module).items() if name not in _REPLACED}
        if self._own_train is not None:
            attributes["train"] = self._own_train
        attributes["training"] = self._training
        return _with_attributes(self._module, without_hooks(attributes, {hook.id for hook in self._hooks}))

    def guard_buffers(self, parts: list[FrozenModule]) -> None:
        """Make the module and its frozen submodules use copies of their buffers while it runs."""
        if self._hooks or not any(part.may_write for part in parts):
            return
        self._parts = parts
        self._hooks = [
            self._module.register_forward_pre_hook(self._before, prepend=True),
            self._module.register_forward_hook(self._after, always_call=True),
        ]

    def _before(self, module: nn.Module, _: Any) -> None:
        """Swap in new copies of the buffers, because the backward pass may need the values written to them."""
        if self._inner or module is not self._module:  # DataParallel runs copies of the module
            return
        shared: dict[Tensor, Tensor] = {}
        swapped: list[_Buffers] = []
        for part in self._parts:
            if part.holders:
                part._inner = part is not self
            if part.holders and part.may_write:
                own = dict(buffers_of(part._module))
                copies = {
                    name: None if buffer is None else shared.setdefault(buffer, buffer.clone())
                    for name, buffer in own.items()
                }
                swapped.append((part._module, own, copies))
        self._passes.append(swapped)
        for part_module, _, copies in swapped:
            buffers_of(part_module).update(copies)

    def _after(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._passes and not self._inner and module is self._module:
            self._end_pass()

    def _end_pass(self) -> None:
        """Restore the buffers, except for caches that the modules have replaced."""
        for module, own, copies in self._passes.pop():
            buffers, caches = buffers_of(module), unsaved_buffers(module)
            replaced = {
                name: buffer
                for name, buffer in buffers.items()
                if name in caches and buffer is not copies.get(name)
            }
            buffers.clear()
            buffers.update({**own, **replaced})
        if not self._passes:
            for part in self._parts:
                part._inner = False
