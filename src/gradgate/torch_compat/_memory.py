"""Names for storages and for the operations of torch's dispatcher, from which a plan makes its estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradgate.torch_compat._private import Private, torch


def _fake_tensors() -> Callable[[], tuple[Any, Any]]:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    return lambda: (FakeTensor, FakeTensorMode)


fake_tensors: Private[[], tuple[Any, Any]] = Private(
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "estimate memory without running anything",
    find=_fake_tensors,
    works=lambda classes: classes()[1](allow_non_fake_inputs=True),
)


storage_key: Private[[Any], int] = Private(
    "torch.UntypedStorage._cdata",
    "tell which tensors share memory",
    find=lambda: lambda storage: storage._cdata,
    works=lambda key: key(torch().zeros(1).untyped_storage()) > 0,
)


def _owns_memory() -> Callable[[Any], bool]:
    count = torch()._C._storage_Use_Count

    def owns(tensor: Any) -> bool:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a sparse tensor's values have one
            return not tensor.is_sparse or owns(tensor._values())
        return bool(count(storage._cdata) == 2)  # held by the tensor, and by `storage`

    return owns


def _sees_views(owns: Any) -> bool:
    whole = torch().zeros(2)
    alone = owns(whole)
    part = whole[:1]
    return alone and not owns(whole) and not owns(part)


# Whether no other tensor, in Python or within autograd, shares a tensor's memory.
owns_memory: Private[[Any], bool] = Private(
    "torch._C._storage_Use_Count",
    "tell whether a gradient shares memory with another tensor",
    find=_owns_memory,
    instead=lambda tensor: False,  # so that every new gradient is copied
    works=_sees_views,
)

# The signature of an operation: its name, and which of its arguments it writes.
op_schema: Private[[Any], Any] = Private(
    "torch._ops.OpOverload._schema",
    "tell which arguments an operation writes",
    find=lambda: lambda operation: operation._schema,
    works=lambda schema: schema(torch().ops.aten.add_.Tensor).is_mutable,
)
