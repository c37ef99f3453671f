"""Freeze modules so that they really stay still, and give back exactly what was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError


class _Kept:
    """A buffer and its values."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self._values = buffer.detach().clone()
        self._version = buffer._version

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo what was written since."""
        if self.buffer._version != self._version:
            self.buffer.copy_(self._values)
            self._version = self.buffer._version


class Frozen:
    """Modules that are frozen. Made by :func:`frozen`; as a context manager it ends with its block."""

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self._modules: dict[nn.Module, tuple[bool, list[RemovableHandle]]] = {}
        self._parameters: dict[Tensor, tuple[bool, Tensor | None]] = {}
        self._holders: Counter[Tensor] = Counter()  # frozen modules that share a parameter
        self._buffers: dict[nn.Module, dict[str, _Kept]] = {}
        for root in modules:
            for module in root.modules():
                if module not in self._modules:
                    self._freeze(module)

    def _freeze(self, module: nn.Module) -> None:
        handles = [module.register_forward_pre_hook(self._before), module.register_forward_hook(self._after)]
        self._modules[module] = module.training, handles
        module.training = False
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            self._holders[parameter] += 1
            if parameter not in self._parameters:
                self._parameters[parameter] = parameter.requires_grad, parameter.grad
                parameter.requires_grad_(False)
                parameter.grad = None
        buffers = {name: one for name, one in module._buffers.items() if one is not None}
        self._buffers[module] = {name: _Kept(one) for name, one in buffers.items()}

    def unfreeze(self, *modules: nn.Module) -> None:
        """Give these modules back as they were; without any, all that are frozen still. Others stay frozen.

        Args:
            modules: some of the frozen ones, or parts of them: the last layers first, as fine-tuning goes on.

        Raises:
            OptionError: one of them is not frozen by this.
        """
        for module in dict.fromkeys(self._parts(modules)) if modules else list(self._modules):
            training, handles = self._modules.pop(module)
            for handle in handles:
                handle.remove()
            module.training = training
            del self._buffers[module]
            for parameter in module._parameters.values():
                if parameter is None or parameter not in self._parameters:
                    continue
                self._holders[parameter] -= 1
                if not self._holders[parameter]:  # else another frozen module shares it
                    required, gradient = self._parameters.pop(parameter)
                    parameter.requires_grad_(required)
                    parameter.grad = gradient

    def _parts(self, modules: tuple[nn.Module, ...]) -> Iterator[nn.Module]:
        for module in modules:
            for part in module.modules():
                if part not in self._modules:
                    raise OptionError(
                        f"unfreeze: {type(part).__name__} is not frozen by this. Pass modules that `frozen` was "
                        "given, or parts of them, once."
                    )
                yield part

    def _before(self, module: nn.Module, _: Any) -> None:
        module.training = False  # model.train() has switched it on

    def _after(self, module: nn.Module, _: Any, __: Any) -> None:
        for name, kept in self._buffers[module].items():
            module._buffers[name] = kept.buffer  # some modules put a new tensor in its place
            kept.put_back()

    def __enter__(self) -> Frozen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unfreeze()


def frozen(*modules: nn.Module) -> Frozen:
    """Freeze modules: parameters and buffers stay as they are, to the bit, and gradient passes through.

    Parameters require no gradient, so that none is computed and torch's optimizers pass them over, whatever their
    weight decay or momentum; gradients that stand already are set aside, for an optimizer would use them. Modules
    are in evaluation mode, also after ``model.train()``: batch norms use their statistics and do not move them,
    dropout drops nothing. Buffers that a forward pass writes all the same are put back after it.

    Args:
        modules: what is frozen, with all its parts.

    Returns:
        a handle: ``unfreeze()`` gives back requires_grad, gradients and modes as they were, of all or of some
        modules. As a context manager it does so at the end of the block.

    Raises:
        OptionError: no module is given.

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
    return Frozen(modules)
