"""What kind of batch a nest is: plans are for batches of one kind, and a window is a list of such."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradgate.nests import tensors_in


def kind_of(nest: Any, *, raw: bool = False) -> Any:
    """Return a description that is equal for batches with the same fields, or of the same raw samples."""
    if raw:
        return "samples", kind_of(nest[0]) if isinstance(nest, (list, tuple)) and nest else None
    if isinstance(nest, Tensor):
        return "tensor", nest.dim()
    if isinstance(nest, dict):
        return type(nest), *((key, kind_of(value)) for key, value in nest.items())
    if isinstance(nest, (list, tuple)) and any(True for _ in tensors_in(nest)):
        return type(nest), *(kind_of(value) for value in nest)
    if isinstance(nest, (list, tuple)) and nest:
        return type(nest), kind_of(nest[0])
    return type(nest)


def told(kind: Any) -> str:
    """Return a description in words."""
    if isinstance(kind, type):
        return f"a {kind.__name__}"
    if kind[0] == "tensor":
        return f"a tensor of {kind[1]} dimensions"
    if kind[0] == "samples":
        return f"a list of samples, each {told(kind[1])}"
    return f"a {kind[0].__name__} of {len(kind) - 1}"
