"""Freeze modules so that they really stay still, and give back exactly what was."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError, UpdateError
from gradgate.gates._copies import VERBS, copied_within, with_attributes
from gradgate.ownership import claimed
from gradgate.torch_compat import buffers_of, has_forward_hooks, unsaved_buffers


class _StillParameter:
    """A parameter that requires no gradient as long as a frozen module holds it."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._required = parameter.requires_grad
        self.holders = 0
        parameter.requires_grad_(False)
        self._gradient, parameter.grad = parameter.grad, None
        vars(parameter).update(copied_within(parameter, self._ordinary))

    @contextmanager
    def _ordinary(self) -> Iterator[None]:
        attributes = {name: value for name, value in vars(self._parameter).items() if name not in VERBS}
        with with_attributes(self._parameter, attributes):
            self._parameter.requires_grad_(self._required)
            try:
                yield
            finally:
                self._parameter.requires_grad_(False)

    def release(self) -> None:
        """Give it back as it was, unless another module holds it."""
        self.holders -= 1
        if self.holders:
            return
        _parameters.pop(id(self._parameter), None)
        for verb in VERBS:
            vars(self._parameter).pop(verb, None)
        self._parameter.requires_grad_(self._required)
        gradient = self._gradient
        if gradient is not None:  # the model may have been moved or converted meanwhile
            gradient = gradient.to(self._parameter.device, self._parameter.grad_dtype)
        self._parameter.grad = gradient


_parameters: weakref.WeakValueDictionary[int, _StillParameter] = weakref.WeakValueDictionary()


def _held(parameter: Tensor) -> _StillParameter:
    still = _parameters.get(id(parameter))
    if still is None:
        still = _parameters[id(parameter)] = _StillParameter(parameter)
    still.holders += 1
    return still


class _StillModule:
    """A module that is frozen, by one handle or by several. It is what ``module.train`` is meanwhile."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._training, self._own_train = module.training, vars(module).get("train")
        # torch's own modules write no buffer in evaluation mode; hooks on them may.
        hooked = has_forward_hooks(module)
        torchs = type(module).__module__.startswith("torch.nn.")
        self.may_write = bool(buffers_of(module) and (hooked or not torchs))
        self._parts: list[_StillModule] = []
        self._hooks: list[RemovableHandle] = []
        self._passes: list[list[_Copies]] = []
        self._within = False  # a module above runs, and has made copies for this one too
        self.holders = 0
        self._parameters: list[_StillParameter] = []
        vars(module).update(copied_within(module, self._ordinary), train=self)
        module.training = False

    def hold(self) -> None:
        """Count one more handle; the first one's parameters are held."""
        self.holders += 1
        if self.holders == 1:
            for parameter in self._module._parameters.values():
                if parameter is not None:
                    self._parameters.append(_held(parameter))

    def release(self) -> None:
        """Give it back as it was, unless another handle holds it."""
        self.holders -= 1
        if self.holders:
            return
        for hook in self._hooks:
            hook.remove()
        while self._passes:  # left by an interrupt
            self._end_pass()
        for name in ("train", *VERBS):
            vars(self._module).pop(name, None)
        if self._own_train is not None:
            vars(self._module)["train"] = self._own_train
        self._module.training = self._training
        for parameter in self._parameters:
            parameter.release()

    def __call__(self, mode: bool = True) -> nn.Module:
        """Stay in evaluation mode; modules below that are not frozen switch."""
        if self._own_train is not None:
            self._own_train(mode)
        else:
            type(self._module).train(self._module, mode)
        self._module.training = False
        return self._module

    def _ordinary(self) -> AbstractContextManager[None]:
        """Show the module as it was before: its mode, its own `train`, and none of the hooks that are from here."""
        hooks = {hook.id for hook in self._hooks}
        attributes = {
            name: value for name, value in vars(self._module).items() if name not in ("train", *VERBS)
        }
        if self._own_train is not None:
            attributes["train"] = self._own_train
        attributes["training"] = self._training
        for name in ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called"):
            theirs = attributes[name]
            attributes[name] = type(theirs)((key, hook) for key, hook in theirs.items() if key not in hooks)
        return with_attributes(self._module, attributes)

    # -- buffers ----------------------------------------------------------------------------------

    def guard(self, parts: list[_StillModule]) -> None:
        """Have itself and the frozen modules below work on copies of their buffers while it runs."""
        if self._hooks or not any(one.may_write for one in parts):
            return
        self._parts = parts
        self._hooks = [
            self._module.register_forward_pre_hook(self._before, prepend=True),
            self._module.register_forward_hook(self._after, always_call=True),
        ]

    def _before(self, module: nn.Module, _: Any) -> None:
        if self._within or module is not self._module:  # DataParallel runs copies of the module
            return
        parts = [one for one in self._parts if one.holders]
        shared: dict[Tensor, Tensor] = {}
        copies = [_Copies(one._module, shared) for one in parts if one.may_write]
        self._passes.append(copies)
        for each in copies:
            each.begin()
        for one in parts:
            one._within = one is not self

    def _after(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._passes and not self._within and module is self._module:
            self._end_pass()

    def _end_pass(self) -> None:
        for each in self._passes.pop():
            each.end()
        if not self._passes:
            for one in self._parts:
                one._within = False


class _Copies:
    """Copies of a module's buffers, on which it works in place of its own.

    Copies, and not values that are put back: what a pass has written may be needed by its backward pass.
    """

    def __init__(self, module: nn.Module, shared: dict[Tensor, Tensor]) -> None:
        self._module = module
        self._own = dict(buffers_of(module))
        self._copies: dict[str, Tensor | None] = {}
        for name, buffer in self._own.items():
            if buffer is not None and buffer not in shared:
                shared[buffer] = buffer.clone()
            self._copies[name] = None if buffer is None else shared[buffer]

    def begin(self) -> None:
        buffers_of(self._module).update(self._copies)

    def end(self) -> None:
        """Give the module its own buffers again, but for caches in whose place it has put others."""
        buffers, caches = buffers_of(self._module), unsaved_buffers(self._module)
        replaced = {
            name: buffer
            for name, buffer in buffers.items()
            if name in caches and buffer is not self._copies.get(name)
        }
        buffers.clear()
        buffers.update({**self._own, **replaced})


class Frozen:
    """Modules that are frozen. Made by :func:`frozen`; as a context manager it ends with its block.

    A copy of a handle that is made together with its modules holds the copies of these.

    Args:
        modules: all of them, parts included.
    """

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self._still: dict[nn.Module, _StillModule] = {}
        _check_no_update(modules, "frozen")
        try:
            for module in modules:
                before = vars(module).get("train")
                still = before if isinstance(before, _StillModule) else _StillModule(module)
                self._still[module] = still
                still.hold()
            for module, still in self._still.items():
                still.guard([self._still[part] for part in module.modules() if part in self._still])
        except BaseException:
            self.unfreeze()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _holding, (tuple(self._still),)

    def unfreeze(self, *modules: nn.Module) -> None:
        """Give these modules back as they were; without any, all that are frozen still. Others stay frozen.

        What another handle has frozen too stays frozen until that one gives it back.

        Args:
            modules: some of the frozen ones, or parts of them: the last layers first, as fine-tuning goes on.

        Raises:
            OptionError: one of them is not frozen by this, nor any part of it.
            UpdateError: an open update owns a parameter of them.
        """
        chosen = list(dict.fromkeys(self._parts(modules)) if modules else self._still)
        _check_no_update(chosen, "unfreeze")
        for module in chosen:
            self._still.pop(module).release()

    def _parts(self, modules: tuple[nn.Module, ...]) -> Iterator[nn.Module]:
        for module in modules:
            parts = [part for part in module.modules() if part in self._still]
            if not parts:
                raise OptionError(
                    f"unfreeze: {type(module).__name__} is not frozen by this. Pass modules that `frozen` was "
                    "given, or parts of them, once."
                )
            yield from parts

    def __enter__(self) -> Frozen:
        if not self._still:
            raise OptionError(
                "frozen: all that this handle froze was given back. Call frozen(...) anew for each block."
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unfreeze()


def _holding(modules: tuple[nn.Module, ...]) -> Frozen:
    """Return a handle that holds copies of modules; if it is a part of one, which is not complete yet, none."""
    return Frozen(modules if all("_modules" in vars(module) for module in modules) else ())


def _check_no_update(modules: Iterable[nn.Module], verb: str) -> None:
    ours = claimed()
    for module in modules if ours else ():
        for name, parameter in module.named_parameters():
            if id(parameter) in ours:
                raise UpdateError(
                    f"{verb}: an open update owns '{name}' of {type(module).__name__}, and adds up in its .grad. "
                    "Do it before the block or after it; to keep one loss out of a part, say where it goes: "
                    "update.backward(loss, into=[...])."
                )


def frozen(*modules: nn.Module) -> Frozen:
    """Freeze modules: parameters and buffers stay as they are, to the bit, and gradient passes through.

    Parameters require no gradient, so that none is computed and torch's optimizers pass them over, whatever their
    weight decay or momentum (but for LBFGS, which steps all of its parameters as one vector); gradients that stand
    already are set aside, for an optimizer would use them. Modules are in evaluation mode, and ``model.train()``
    does not change that: batch norms use their statistics and do not move them, dropout drops nothing. Where a
    forward pass writes buffers all the same, it writes copies. Only a non-persistent buffer in whose place it puts
    another, a cache, is its own. A copy (``deepcopy``, ``pickle``, ``torch.save``, an average such as EMA's) is as
    the modules were before, and frozen only if the handle is copied with it.

    Args:
        modules: what is frozen, with all its parts.

    Returns:
        a handle: ``unfreeze()`` gives back requires_grad, gradients and modes as they were, of all or of some
        modules. As a context manager it does so at the end of the block. Modules may be frozen several times over:
        they are given back as they were before the first, by whichever handle ends last.

    Raises:
        OptionError: no module is given.
        UpdateError: an open update owns a parameter of them: its sum stands in ``.grad``.

    Example:
        >>> backbone, head = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
        >>> model = torch.nn.Sequential(backbone, head)
        >>> with frozen(backbone):
        ...     model.train()(torch.randn(8, 2)).sum().backward()
        >>> backbone.num_batches_tracked.item(), backbone.weight.grad, backbone.weight.requires_grad
        (0, None, True)
    """
    if not modules or not all(isinstance(one, nn.Module) for one in modules):
        found = ", ".join(type(one).__name__ for one in modules) or "nothing"
        raise OptionError(
            f"frozen: it was given {found}. Pass the modules to freeze: frozen(model.backbone)."
        )
    return Frozen(tuple(dict.fromkeys(part for module in modules for part in module.modules())))
