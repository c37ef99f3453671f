"""Counts the bytes of tensors as they are created and freed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradgate.torch_compat import storage_key


class peak_memory(TorchDispatchMode):  # noqa: N801 - used as torch.no_grad is
    """Measure the most bytes that new tensors hold at once inside a block, on any device.

    Counts every storage that an operation creates while the block runs, forward and backward, until the storage
    is freed. It doesn't count storages that existed before, an operation's inner workspace, or memory allocated
    outside torch. Unlike an allocator's own statistics, it works on a CPU and gives the same result each time.

    Attributes:
        peak_bytes: the most bytes alive at once so far.
        live_bytes: the bytes alive now.

    Example:
        >>> with peak_memory() as memory:
        ...     a = torch.ones(1000)  # 4000 bytes
        ...     b = a * 2  # 4000 more
        ...     del a
        ...     c = b * 2
        >>> memory
        peak_memory(peak_bytes=8000, live_bytes=8000)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key = storage_key.use
        self.peak_bytes = 0
        self.live_bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __repr__(self) -> str:
        return f"peak_memory(peak_bytes={self.peak_bytes}, live_bytes={self.live_bytes})"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tensors_of((*args, *(kwargs or {}).values())):
            self.note_existing(tensor)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of((result,)):
            self.note_created(tensor)
        return result

    def note_existing(self, tensor: Tensor) -> None:
        """Register a tensor's storage without counting it, unless it is already known."""
        if tensor.layout == torch.strided:
            self._note_storage(tensor.untyped_storage(), 0)

    def note_created(self, tensor: Tensor) -> None:
        """Count a tensor's storage, unless it is already known."""
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            self._note_storage(storage, storage.nbytes())

    def _note_storage(self, storage: torch.UntypedStorage, size: int) -> None:
        key = self._key(storage)
        if key in self._known:
            return

        def freed(_: Any) -> None:
            del self._known[key]
            if size:
                self.changed(-size, key)

        self._known[key] = weakref.ref(storage, freed)
        if size:
            self.changed(size, key)

    def changed(self, size: int, key: int) -> None:
        """Record that the storage with this key was created (positive size) or freed (negative size)."""
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments or results, which may be nested in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)
