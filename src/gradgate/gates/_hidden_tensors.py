"""Refuses containers in which a gate would not find the tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from gradgate.errors import OptionError
from gradgate.pytree import tensors_in

_PLAIN = (str, bytes, int, float, complex, type(None))


def check_leaf(leaf: Any, verb: str) -> None:
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
    return any(isinstance(each, Tensor) and each.requires_grad for each in tensors_in(tree))
