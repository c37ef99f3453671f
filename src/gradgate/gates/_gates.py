"""Gates on tensors: the same value in the forward pass, another gradient in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from gradgate.backward_weight import reads_weight, weight_of_pass
from gradgate.errors import OptionError, ShapeError
from gradgate.pytree import mapped_tensors, tensors_in

T = TypeVar("T")

_PLAIN = (str, bytes, int, float, complex, type(None))

Factor: TypeAlias = "float | Tensor | Callable[[], float | Tensor]"
"""A number, a tensor that broadcasts to the gradient, or a schedule: a function that is called each time."""


def stop_gradient(x: T) -> T:
    """Stop the gradient: nothing before ``x`` receives a gradient through it.

    That part of the backward pass is skipped and its activations are not kept, so this is the cheapest gate.

    Args:
        x: a tensor, or a pytree of tensors (tuples, lists, dicts, dataclasses).

    Returns:
        The same values in the same pytree, detached. They share memory with ``x``: do not modify them in place.

    Example:
        >>> x = torch.tensor(1.0, requires_grad=True)
        >>> y = x**2
        >>> z = 2 * y
        >>> (z**3 + 2 * stop_gradient(z)).backward()
        >>> x.grad  # 48; without the stop the side branch adds 8
        tensor(48.)
    """
    # torch.detach, not the method, which the checker may report as a mistake.
    return mapped_tensors(x, torch.detach, lambda leaf: _check_leaf(leaf, "stop_gradient"))


def scale_gradient(x: T, factor: Factor) -> T:
    """Multiply the gradient by a factor.

    Args:
        x: a tensor, or a pytree of tensors. Integer tensors, which carry no gradient, pass unchanged.
        factor: a finite number; a tensor that broadcasts to ``x``; or a function that is called whenever the gate
            is applied and returns one of these. A factor of 0 sends zeros back; :func:`stop_gradient` costs less.

    Returns:
        The same values, bit for bit. They share memory with ``x``: torch refuses to modify them in place.

    Raises:
        OptionError: the factor is not a finite number.
        ShapeError: the factor does not broadcast to ``x``.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> scale_gradient(x, 0.1).sum().backward()
        >>> x.grad
        tensor([0.1000, 0.1000])
    """
    what = "scale_gradient: the factor"
    factor = checked_factor(factor, what)
    return _gated(x, what, _Scaled, factor, None, fits=factor)


def reverse_gradient(x: T, *, strength: Factor = 1.0) -> T:
    """Reverse the gradient: the layers before ``x`` learn to increase the loss.

    Args:
        x: a tensor, or a pytree of tensors.
        strength: the gradient is multiplied by ``-strength``. Otherwise as ``factor`` in :func:`scale_gradient`.

    Returns:
        The same values, bit for bit.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> reverse_gradient(x, strength=0.5).sum().backward()
        >>> x.grad
        tensor([-0.5000, -0.5000])

    Sources:
        Y. Ganin, V. Lempitsky, "Unsupervised Domain Adaptation by Backpropagation" (2015).
    """
    what = "reverse_gradient: the strength"
    factor = -checked_factor(strength, what)
    return _gated(x, what, _Scaled, factor, None, fits=factor)


def mask_gradient(x: T, mask: Tensor) -> T:
    """Let gradient pass only where a mask is True.

    Args:
        x: a tensor, or a pytree of tensors; the mask broadcasts to each of them.
        mask: bool, or numbers. Where it is 0 the gradient becomes 0, even if it is NaN or infinite. A floating mask
            multiplies the gradient elsewhere, so that a fraction lets a part of it pass.

    Returns:
        The same values, bit for bit.

    Raises:
        ShapeError: the mask does not broadcast to ``x``.

    Example:
        >>> x = torch.ones(3, requires_grad=True)
        >>> mask_gradient(x, torch.tensor([True, False, True])).sum().backward()
        >>> x.grad
        tensor([1., 0., 1.])
    """
    fractions = mask if mask.is_floating_point() else None
    return _gated(x, "mask_gradient: the mask", _Scaled, fractions, mask != 0, fits=mask)


def clip_gradient(x: T, *, max_norm: float | None = None, max_value: float | None = None) -> T:
    """Clip the gradient of each tensor separately.

    Args:
        x: a tensor, or a pytree of tensors.
        max_norm: the largest Euclidean norm of a tensor's gradient.
        max_value: the largest absolute value of an entry. Give one of the two.

    Returns:
        The same values, bit for bit.

    Raises:
        OptionError: neither or both limits are given, or a limit is not above 0.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> (3 * clip_gradient(x, max_value=2.0)).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """
    given = [limit for limit in (max_norm, max_value) if limit is not None]
    if len(given) != 1 or not given[0] > 0:
        raise OptionError(
            f"clip_gradient: max_norm is {max_norm} and max_value is {max_value}. Give one of them, above 0: "
            "max_norm=1.0."
        )
    reads_weight()
    return _gated(x, "clip_gradient", _Clipped, max_norm, max_value)


def _gated(x: T, what: str, gate: type[_Gate], *options: Any, fits: Any = None) -> T:
    """Return a pytree with a gate on each tensor that can carry a gradient.

    ``what`` names the function and its option in messages. ``fits`` has to broadcast to each tensor, if it is one.
    """

    def gated(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        if isinstance(fits, Tensor):
            check_broadcasts(fits, tensor, what)
        passed: Tensor = gate.apply(tensor, *options)  # type: ignore[no-untyped-call]
        return passed

    return mapped_tensors(x, gated, lambda leaf: _check_leaf(leaf, what.partition(":")[0]))


def checked_factor(factor: Factor, what: str) -> float | Tensor:
    """Return the current factor; ``what`` names it in messages."""
    if callable(factor) and not isinstance(factor, Tensor):
        factor = factor()
    if isinstance(factor, Tensor):
        return factor
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        raise OptionError(
            f"{what} is {factor!r}. Pass a finite number, a tensor, or a function that returns one."
        )
    return float(factor)


def check_broadcasts(given: Tensor, x: Tensor, what: str) -> None:
    try:
        fits = torch.broadcast_shapes(given.shape, x.shape) == x.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{what} has shape {list(given.shape)}, which does not broadcast to the tensor's shape "
            f"{list(x.shape)}. Pass one that does."
        )


def _check_leaf(leaf: Any, verb: str) -> None:
    """Raise OptionError if a pytree leaf is an object with tensors inside: their gradient would pass unchanged."""
    if isinstance(leaf, _PLAIN):
        return
    kind = type(leaf).__name__
    if isinstance(leaf, nn.Module):
        raise OptionError(
            f"{verb}: got a module ({kind}), but a gate acts on tensors. Pass the tensor that the module returns. "
            "To keep a module unchanged, use gg.frozen(module). To scale its gradients, use gg.scaled(module, "
            "factor=...)."
        )
    if isinstance(leaf, Iterator):
        raise OptionError(
            f"{verb}: got an iterator ({kind}), but a gate does not consume iterators. Pass a list: "
            f"{verb}(list(x))."
        )
    if type(leaf).__module__ == "torch.fx.proxy":
        raise OptionError(
            f"{verb}: torch.fx.symbolic_trace would leave the gate out of the graph. Put the call into a function "
            "at the top level of a file, and keep the tracer out of it: @torch.fx.wrap above def gated(x)."
        )
    name = _name_of_hidden(leaf)
    if name is None:
        return
    instead = f"the tensor itself, x.{name}" if name else "them in a list, list(x)"
    raise OptionError(
        f"{verb}: got a {kind} that holds tensors. A gate finds tensors only in tuples, lists, dicts and "
        f"dataclasses, so the gradient would pass this {kind} unchanged. Pass {instead}."
    )


def _name_of_hidden(leaf: Any) -> str | None:
    """Return the attribute that holds a tensor with a gradient, "" if an item holds it, or None."""
    if isinstance(leaf, Collection) and type(leaf).__module__ != "numpy" and _carries(list(leaf)):
        return ""
    named = getattr(leaf, "__dict__", {})
    return next((name for name, value in named.items() if _carries(value)), None)


def _carries(tree: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tensors_in(tree))


class _Gate(torch.autograd.Function):
    """Returns a view of its input, and changes the gradient in ``backward``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Tensor:
        del options
        return x.view_as(x)


class _Scaled(_Gate):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.factor, mask = inputs
        factors = ctx.factor if isinstance(ctx.factor, Tensor) else None
        ctx.factor = None if factors is not None else ctx.factor
        ctx.save_for_backward(factors, mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        factors, mask = ctx.saved_tensors
        gradient = gradient if mask is None else torch.where(mask, gradient, 0)
        gradient = gradient if ctx.factor is None else gradient * ctx.factor
        return gradient if factors is None else _times(gradient, factors), None, None


class _Clipped(_Gate):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.max_norm, ctx.max_value = inputs
        if ctx.max_value is not None and x.is_complex():
            raise OptionError("clip_gradient: max_value cannot clip a complex gradient. Use max_norm.")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # A limit of the gradient of the loss itself, whatever the weight and the loss scale of this pass.
        weight = weight_of_pass(gradient)
        if ctx.max_value is not None:
            limit = ctx.max_value * weight
            return gradient.clamp(-limit, limit), None, None
        # In float32 at least: a float16 norm above 65504 is infinite, and would make the gradient zero.
        wide = torch.promote_types(gradient.dtype, torch.float32)
        norm = torch.linalg.vector_norm(gradient, dtype=wide)
        # The clamp only avoids 0/0: the factor is at most 1.
        factor = (ctx.max_norm * weight / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
        return _times(gradient, factor), None, None


def _times(gradient: Tensor, factor: Tensor) -> Tensor:
    """Return the product in the gradient's dtype. It is computed in the wider dtype: no float16 factor vanishes."""
    if factor.is_complex() and not gradient.is_complex():
        factor = factor.real
    wide = torch.promote_types(gradient.dtype, factor.dtype)
    return (gradient.to(wide) * factor).to(gradient.dtype)
