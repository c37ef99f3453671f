"""Freezes modules. Unfreezing restores their exact previous state.

Several handles may hold the same module, and several modules the same parameter; the last release unfreezes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError, UpdateError
from gradgate.gates._parameters import check_modules, parameters_now
from gradgate.ownership import claimed
from gradgate.torch_compat import (
    buffers_of,
    has_forward_hooks,
    parameters_of,
    unsaved_buffers,
)

_COPYING = ("__deepcopy__", "__reduce_ex__")  # looked up on the object itself before its class
_RESETS = "reset_running_stats"  # which `torch.optim.swa_utils.update_bn` calls on every batch norm
_REPLACED = ("train", _RESETS, *_COPYING)  # set on a frozen module itself, over the methods of its class


def frozen(*modules: nn.Module) -> Frozen:
    """Freeze modules: parameters and buffers stay bit for bit the same, and gradients pass through.

    Parameters require no gradient, so torch's optimizers skip them, even with weight decay or momentum (except
    LBFGS, which steps all of its parameters as one vector). Existing gradients are saved and removed, because an
    optimizer would use them. Modules stay in evaluation mode, even after ``model.train()``: batch norms use their
    running statistics without updating them, and dropout drops nothing. If a forward pass writes to buffers, it
    writes to copies, which are dropped afterwards. If it replaces a non-persistent buffer (a cache), the new one is
    kept. A copy of the modules (``deepcopy``, ``pickle``, ``torch.save``) is in evaluation mode, and its parameters
    require no gradient, but nothing keeps it so: ``copied.train().requires_grad_()`` trains it.

    Args:
        modules: the modules to freeze, with all their submodules.

    Returns:
        A handle: ``unfreeze()`` restores requires_grad, gradients and modes, of all or of some modules. As a
        context manager, it does so at the end of the block. Modules can be frozen more than once; the last handle
        to be unfrozen restores the original state.

    Raises:
        OptionError: no module is given.
        UpdateError: an open update owns one of their parameters, and holds its sum in ``.grad``.

    Example:
        >>> backbone, head = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
        >>> model = torch.nn.Sequential(backbone, head)
        >>> with frozen(backbone):
        ...     model.train()(torch.randn(8, 2)).sum().backward()
        >>> backbone.num_batches_tracked.item(), backbone.weight.grad, backbone.weight.requires_grad
        (0, None, True)
    """
    check_modules(modules, "frozen(model.backbone)")
    return Frozen(tuple(dict.fromkeys(part for module in modules for part in module.modules())))


class Frozen:
    """A handle on frozen modules. Made by :func:`frozen`; as a context manager, it unfreezes them after the block.

    Args:
        modules: all frozen modules, submodules included.
    """

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self._frozen: dict[nn.Module, _FrozenModule] = {}
        _check_no_update(modules, "frozen")
        try:
            for module in modules:
                train = vars(module).get("train")
                self._frozen[module] = train if isinstance(train, _FrozenModule) else _FrozenModule(module)
                self._frozen[module].hold()
            for module, frozen in self._frozen.items():
                frozen.guard_buffers([self._frozen[part] for part in self._parts_of(module)])
        except BaseException:
            self.unfreeze()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, ((),)  # a copy holds nothing

    def __repr__(self) -> str:
        inner = {part for module in self._frozen for part in list(module.modules())[1:]}
        names = ", ".join(type(module).__name__ for module in self._frozen if module not in inner)
        parameters = {p for module in self._frozen for p in module.parameters(recurse=False)}
        size = sum(parameter.numel() for parameter in parameters)
        tensors = f"{len(parameters)} tensor{'s' * (len(parameters) != 1)}"
        return f"Frozen({names or 'nothing'}: {tensors}, {size:,} parameter{'s' * (size != 1)})"

    def unfreeze(self, *modules: nn.Module) -> None:
        """Unfreeze these modules, or all modules if none is given. Others stay frozen.

        A module that another handle has also frozen stays frozen until that handle releases it.

        Args:
            modules: some of the frozen modules or their submodules: for example, one layer after the other, as
                fine-tuning progresses.

        Raises:
            OptionError: this handle holds no part of a given module.
            UpdateError: an open update owns one of their parameters.
        """
        chosen = dict.fromkeys(part for module in modules for part in self._parts_of(module))
        for module in modules:
            if not any(part in chosen for part in module.modules()):
                raise OptionError(
                    f"unfreeze: {type(module).__name__} is not frozen by this handle. Pass modules that "
                    "this handle froze, or their submodules, each once."
                )
        chosen = chosen if modules else dict.fromkeys(self._frozen)
        _check_no_update(chosen, "unfreeze")
        for module in chosen:
            self._frozen.pop(module).release()

    def _parts_of(self, module: nn.Module) -> Iterator[nn.Module]:
        return (part for part in module.modules() if part in self._frozen)

    def __enter__(self) -> Frozen:
        if not self._frozen:
            raise OptionError("frozen: this handle has been unfrozen. Call frozen(...) again for each block.")
        return self

    def __exit__(self, *_: object) -> None:
        self.unfreeze()


def _check_no_update(modules: Iterable[nn.Module], verb: str) -> None:
    ours = claimed()
    for module in modules if ours else ():
        for name, parameter in module.named_parameters():
            if id(parameter) in ours:
                raise UpdateError(
                    f"{verb}: an open update owns '{name}' of {type(module).__name__}, and accumulates in its "
                    ".grad. Call this before or after the block. To keep one loss out of a module, name the "
                    "modules that receive it: update.backward(loss, into=[...])."
                )


class _FrozenParameter:
    """A parameter that requires no gradient as long as a frozen module holds it."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self.required = parameter.requires_grad
        self.holders = 0
        parameter.requires_grad_(False)
        self._gradient, parameter.grad = parameter.grad, None

    def release(self) -> None:
        """Unfreeze the parameter, unless another module holds it."""
        self.holders -= 1
        if self.holders:
            return
        _frozen_parameters.pop(id(self._parameter), None)
        self._parameter.requires_grad_(self.required)
        gradient = self._gradient
        if gradient is not None:  # the model may have been moved or converted since
            gradient = gradient.to(self._parameter.device, self._parameter.grad_dtype)
        self._parameter.grad = gradient


_frozen_parameters: weakref.WeakValueDictionary[int, _FrozenParameter] = weakref.WeakValueDictionary()


class _FrozenModule:
    """A module that one or several handles keep frozen. This object replaces the method ``module.train``."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._training, self._own_train = module.training, vars(module).get("train")
        # torch's own modules write no buffer in evaluation mode; hooks on them may.
        is_torchs = type(module).__module__.startswith("torch.nn.")
        self.may_write = bool(buffers_of(module) and (has_forward_hooks(module) or not is_torchs))
        self._parts: list[_FrozenModule] = []
        self._hooks: list[RemovableHandle] = []
        self._passes: list[
            list[_FrozenModule]
        ] = []  # for each running pass, the parts whose buffers it copied
        # During a pass: the buffers by name, and the copies that the module uses.
        self._saved: dict[str, Tensor | None] | None = None
        self._copies: dict[str, Tensor | None] = {}
        self.holders = 0
        self._parameters: dict[str, _FrozenParameter] = {}
        vars(module)["train"] = self
        for name in _COPYING:
            if hasattr(type(module), name):
                vars(module)[name] = partial(self._copied, name)
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
        self._restore_buffers()  # if an interrupt has ended the last pass
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
            parameters = child.parameters(recurse=False) if hasattr(child, _RESETS) else ()
            if any(id(parameter) in _frozen_parameters for parameter in parameters):
                child.training = False
        return self._module

    def _copied(self, name: str, *args: Any) -> Any:
        """Copy or pickle the module without the methods that were replaced."""
        saved = vars(self._module)
        kept = {name: value for name, value in saved.items() if name not in _REPLACED}
        object.__setattr__(self._module, "__dict__", kept)
        try:
            return getattr(type(self._module), name)(self._module, *args)
        finally:
            object.__setattr__(self._module, "__dict__", saved)

    def guard_buffers(self, parts: list[_FrozenModule]) -> None:
        """Make the module and its frozen submodules use copies of their buffers while it runs."""
        if self._hooks or not any(part.may_write for part in parts):
            return
        self._parts = parts
        self._hooks = [
            self._module.register_forward_pre_hook(_before, prepend=True),
            self._module.register_forward_hook(_after, always_call=True),
        ]

    def use_copies(self) -> None:
        """Swap in new copies of the buffers, because the backward pass may need the values written to them.

        Inside a pass of a module around this one, the copies of that pass stay in use.
        """
        parts = [part for part in self._parts if part.holders and part.may_write and part._saved is None]
        copies: dict[Tensor, Tensor] = {}
        for part in parts:
            for buffer in buffers_of(part._module).values():
                if buffer is not None and buffer not in copies:
                    copies[buffer] = buffer.clone()
        for part in parts:
            buffers = buffers_of(part._module)
            part._saved = dict(buffers)
            part._copies = {name: None if b is None else copies[b] for name, b in buffers.items()}
            buffers.update(part._copies)
        self._passes.append(parts)

    def drop_copies(self) -> None:
        """End a pass."""
        for part in self._passes.pop() if self._passes else ():
            part._restore_buffers()

    def _restore_buffers(self) -> None:
        """Restore the buffers, except for caches that the module has replaced."""
        if self._saved is None:
            return
        buffers, caches = buffers_of(self._module), unsaved_buffers(self._module)
        replaced = {
            name: buffer
            for name, buffer in buffers.items()
            if name in caches and buffer is not self._copies.get(name)
        }
        buffers.clear()
        buffers.update({**self._saved, **replaced})
        self._saved = None


# As functions, these hooks are copied with a module, and do nothing in its copies, such as those of DataParallel.


def _before(module: nn.Module, _: Any) -> None:
    if frozen := _frozen_at(module):
        frozen.use_copies()


def _after(module: nn.Module, _: Any, __: Any) -> None:
    if frozen := _frozen_at(module):
        frozen.drop_copies()


def _frozen_at(module: nn.Module) -> _FrozenModule | None:
    train = vars(module).get("train")
    return train if isinstance(train, _FrozenModule) and train._module is module else None
