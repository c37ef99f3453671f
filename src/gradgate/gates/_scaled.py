"""Scales the gradients of a module's parameters, without changing its code."""

from __future__ import annotations

from torch import Tensor, nn

from gradgate.errors import OptionError
from gradgate.gates._gates import Factor, check_broadcasts, checked_factor
from gradgate.gates._parameters import GradientHooks, check_modules
from gradgate.torch_compat import is_dtensor


class ScaledModules:
    """A handle on modules whose gradients are scaled. Made by :func:`scaled`."""

    def __init__(self, modules: tuple[nn.Module, ...], factor: Factor) -> None:
        self._modules, self._factor = modules, factor
        parameters = dict.fromkeys(p for module in modules for p in module.parameters())
        parts = (part for module in modules for part in module.modules())
        self._hooks = GradientHooks("scaled", self._times, parameters, parts)

    def __repr__(self) -> str:
        names = ", ".join(type(module).__name__ for module in self._modules)
        return f"ScaledModules({names}, factor={self._factor})"

    def _times(self, gradient: Tensor) -> Tensor:
        factor = checked_factor(self._factor, "scaled: the factor")
        if isinstance(factor, Tensor):
            check_broadcasts(factor, gradient, "scaled: the factor")
            factor = factor.to(gradient.dtype)
        return gradient * factor

    def remove(self) -> None:
        """Stop scaling."""
        self._hooks.remove()

    def __enter__(self) -> ScaledModules:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def scaled(*modules: nn.Module, factor: Factor) -> ScaledModules:
    """Multiply the gradients of modules' parameters, but not the gradient that flows through to other modules.

    For plain SGD this acts as a separate learning rate. Adam and similar optimizers normalize gradients, so a
    constant factor only affects clipping: use :func:`param_groups` with these. To scale the gradient that flows
    through as well, put a gate after the module, for example with a hook:
    ``module.register_forward_hook(lambda module, given, out: scale_gradient(out, 0.1))``.

    Args:
        modules: the modules, with all their submodules. A parameter that they share is scaled once; a second call
            multiplies the factors.
        factor: a finite number; a tensor that broadcasts to every gradient; or a function that is called for each
            gradient and returns one of these.

    Returns:
        A handle: ``remove()`` stops the scaling. As a context manager, it stops at the end of the block, which must
        contain the backward pass.

    Raises:
        OptionError: no module is given, the factor is not finite, or parameters are sharded; at the next step of
            an optimizer, if it owns parameters that have replaced these.

    Example:
        >>> trunk, head = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = trunk.weight.fill_(2.0), head.weight.fill_(3.0)
        >>> with scaled(trunk, factor=0.1):
        ...     head(trunk(torch.ones(1, 1))).sum().backward()
        >>> trunk.weight.grad, head.weight.grad  # 3 and 2 without the factor
        (tensor([[0.3000]]), tensor([[2.]]))
    """
    check_modules(modules, "scaled(model.trunk, factor=0.1)")
    if not any(list(module.parameters()) for module in modules):
        raise OptionError(
            "scaled: the modules have no parameters, so there is nothing to scale. Pass modules with parameters; "
            "scale_gradient(x, factor) scales a tensor between them."
        )
    if any(is_dtensor(p) for module in modules for p in module.parameters()):
        raise OptionError(
            "scaled: parameters are sharded, and fully_shard fills their gradients without calling hooks. Give the "
            "modules a learning rate of their own: gg.param_groups(model, {'trunk': 0.1}, lr=...)."
        )
    if not callable(factor):
        checked_factor(factor, "scaled: the factor")
    return ScaledModules(modules, factor)
