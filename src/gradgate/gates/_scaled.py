"""Scale the gradient that a module's parameters receive, without touching its code."""

from __future__ import annotations

from types import TracebackType

from torch import Tensor, nn

from gradgate.errors import OptionError
from gradgate.gates._gates import Factor, check_fits, checked_factor
from gradgate.gates._leaves import on_gradient


class Scaled:
    """Modules whose gradient is scaled. Made by :func:`scaled`."""

    def __init__(self, modules: tuple[nn.Module, ...], factor: Factor) -> None:
        self._factor = factor
        parameters = dict.fromkeys(one for module in modules for one in module.parameters())
        self._hooks = [on_gradient(parameter, self._times) for parameter in parameters]

    def _times(self, gradient: Tensor) -> Tensor:
        factor = checked_factor(self._factor, "scaled")
        if isinstance(factor, Tensor):
            check_fits(factor, gradient, "scaled: the factor")
            factor = factor.to(gradient.dtype)
        return gradient * factor

    def remove(self) -> None:
        """Scale no longer."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Scaled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def scaled(*modules: nn.Module, factor: Factor) -> Scaled:
    """Multiply the gradient that modules' parameters receive; what passes through to others is as before.

    For plain SGD this is a learning rate of their own. Adam and its kin divide a gradient by its own size, so that
    a constant factor changes nothing but what a clip sees: give those :func:`param_groups`. To scale what passes
    through as well, put a gate behind the module, from outside too:
    ``module.register_forward_hook(lambda module, given, out: scale_gradient(out, 0.1))``.

    Args:
        modules: which, with all their parts. A parameter that they share is scaled once; scaling what is scaled
            already multiplies the factors.
        factor: a finite number; a tensor that broadcasts to every gradient; or a function that returns one of
            these, and is asked for each gradient.

    Returns:
        a handle: ``remove()`` ends it. As a context manager it ends with its block; backward belongs inside.

    Raises:
        OptionError: no module is given, or the factor is not finite.

    Example:
        >>> trunk, head = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = trunk.weight.fill_(2.0), head.weight.fill_(3.0)
        >>> with scaled(trunk, factor=0.1):
        ...     head(trunk(torch.ones(1, 1))).sum().backward()
        >>> trunk.weight.grad, head.weight.grad  # 3 and 2 without the factor
        (tensor([[0.3000]]), tensor([[2.]]))
    """
    if not modules or not all(isinstance(one, nn.Module) for one in modules):
        found = ", ".join(type(one).__name__ for one in modules) or "nothing"
        raise OptionError(f"scaled: it was given {found}. Pass modules: scaled(model.trunk, factor=0.1).")
    if not any(list(one.parameters()) for one in modules):
        raise OptionError(
            "scaled: the modules have no parameters, so there is nothing to scale. Pass those that have; a "
            "tensor between them is scaled by scale_gradient(x, factor)."
        )
    if not callable(factor):
        checked_factor(factor, "scaled")
    return Scaled(modules, factor)
