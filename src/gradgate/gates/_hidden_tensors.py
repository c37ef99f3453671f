"""Refuses containers in which a gate would not find the tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from gradgate.errors import OptionError
from gradgate.pytree import tensors_in

_PLAIN = (str, bytes, int, float, complex, type(None))


def check_leaf(leaf: Any, verb: str) -> None:
    """Raise OptionError for a leaf of a pytree that holds tensors: their gradient would pass the gate unchanged."""
    if isinstance(leaf, _PLAIN):
        return
    kind = type(leaf).__name__
    if isinstance(leaf, nn.Module):
        raise OptionError(
            f"{verb}: it was given a module ({kind}), and a gate acts on tensors. Pass the tensor that the module "
            "returns; gg.frozen(module) keeps a module unchanged, gg.scaled(module, factor=...) scales its "
            "gradients."
        )
    if isinstance(leaf, Iterator):
        raise OptionError(
            f"{verb}: it was given an iterator ({kind}), and a gate does not draw from it. Pass a list: "
            f"{verb}(list(x))."
        )
    if type(leaf).__module__ == "torch.fx.proxy":
        raise OptionError(
            f"{verb}: torch.fx.symbolic_trace would leave the gate out of the graph. Put the call into a function "
            "that it does not trace into, at the top level of a file: @torch.fx.wrap above def gated(x)."
        )
    name = _name_of_hidden(leaf)
    if name is None:
        return
    instead = f"the tensor itself, x.{name}" if name else "them in a list, list(x)"
    raise OptionError(
        f"{verb}: it was given a {kind} that holds tensors, and a gate finds tensors in tuples, lists, dicts and "
        f"dataclasses only, so their gradient would pass unchanged. Pass {instead}."
    )


def _name_of_hidden(leaf: Any) -> str | None:
    """Return the attribute that holds a tensor with a gradient, "" if an item holds it, or None."""
    if isinstance(leaf, Collection) and type(leaf).__module__ != "numpy" and _carries(list(leaf)):
        return ""
    named = getattr(leaf, "__dict__", {})
    return next((name for name, value in named.items() if _carries(value)), None)


def _carries(tree: Any) -> bool:
    return any(isinstance(each, Tensor) and each.requires_grad for each in tensors_in(tree))
