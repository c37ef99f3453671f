"""Freezes modules. Unfreezing restores their exact previous state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from gradgate.errors import OptionError, UpdateError
from gradgate.gates._frozen_state import FrozenModule
from gradgate.gates._parameters import check_modules
from gradgate.ownership import claimed


class Frozen:
    """A handle on frozen modules. Made by :func:`frozen`; as a context manager, it unfreezes them after the block.

    A copy of the handle, made together with a copy of its modules, freezes the copied modules.

    Args:
        modules: all frozen modules, submodules included.
    """

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self._frozen: dict[nn.Module, FrozenModule] = {}
        _check_no_update(modules, "frozen")
        try:
            for module in modules:
                train = vars(module).get("train")
                self._frozen[module] = train if isinstance(train, FrozenModule) else FrozenModule(module)
                self._frozen[module].hold()
            for module, frozen in self._frozen.items():
                frozen.guard_buffers([self._frozen[part] for part in self._parts_of(module)])
        except BaseException:
            self.unfreeze()
            raise

    def __copy__(self) -> Frozen:
        return self  # another handle on the same modules would freeze them again

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (tuple(self._frozen),)

    def __repr__(self) -> str:
        inner = {part for module in self._frozen for part in list(module.modules())[1:]}
        names = ", ".join(type(module).__name__ for module in self._frozen if module not in inner)
        parameters = {each for module in self._frozen for each in module.parameters(recurse=False)}
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


def _restored(modules: tuple[nn.Module, ...]) -> Frozen:
    """Return a copied handle on copied modules, or an empty handle if the modules are not copied completely yet."""
    return Frozen(modules if all(vars(module) for module in modules) else ())


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


def frozen(*modules: nn.Module) -> Frozen:
    """Freeze modules: parameters and buffers stay bit for bit the same, and gradients pass through.

    Parameters require no gradient, so torch's optimizers skip them, even with weight decay or momentum (except
    LBFGS, which steps all of its parameters as one vector). Existing gradients are saved and removed, because an
    optimizer would use them. Modules stay in evaluation mode, even after ``model.train()``: batch norms use their
    running statistics without updating them, and dropout drops nothing. If a forward pass writes to buffers, it
    writes to copies, which are dropped afterwards. If it replaces a non-persistent buffer (a cache), the new one is
    kept. A copy of the modules (``deepcopy``, ``pickle``, ``torch.save``, an average such as EMA's) is not
    frozen, unless the handle is copied with them.

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
