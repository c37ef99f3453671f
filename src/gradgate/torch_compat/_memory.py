"""Names for storages and for the operations of torch's dispatcher, from which a plan makes its estimate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
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


def _dispatch_mode() -> Callable[[], Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    return lambda: TorchDispatchMode


# https://docs.pytorch.org/docs/stable/notes/extending.html#extending-all-torch-api-with-modes
dispatch_mode: Private[[], Any] = Private(
    "torch.utils._python_dispatch.TorchDispatchMode",
    "see which operations run and how much memory they take",
    find=_dispatch_mode,
    instead=lambda: object,  # so that a subclass can be defined; it calls `require` before use
    works=lambda mode: isinstance(mode(), type),
)


def _without_dispatch_modes() -> Callable[[], AbstractContextManager[Any]]:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes


without_dispatch_modes: Private[[], AbstractContextManager[Any]] = Private(
    "torch.utils._python_dispatch._disable_current_modes",
    "compute outside of the pass that it traces",
    find=_without_dispatch_modes,
)

storage_key: Private[[Any], int] = Private(
    "torch.UntypedStorage._cdata",
    "tell which tensors share memory",
    find=lambda: lambda storage: storage._cdata,
    works=lambda key: key(torch().zeros(1).untyped_storage()) > 0,
)

# The signature of an operation: its name, and which of its arguments it writes.
op_schema: Private[[Any], Any] = Private(
    "torch._ops.OpOverload._schema",
    "tell which arguments an operation writes",
    find=lambda: lambda operation: operation._schema,
    works=lambda schema: schema(torch().ops.aten.add_.Tensor).is_mutable,
)

op_packet: Private[[Any], Any] = Private(
    "torch._ops.OpOverload._overloadpacket",
    "count the floating-point operations of a pass",
    find=lambda: lambda operation: operation._overloadpacket,
    works=lambda packet: packet(torch().ops.aten.mm.default) is torch().ops.aten.mm,
)
