"""Count the bytes of tensors as they come and go."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.torch_compat import dispatch_mode, storage_key


class peak_memory(dispatch_mode()):  # type: ignore[misc]  # noqa: N801 - used as torch.no_grad is
    """Measure the most bytes that new tensors held at once inside a block, on any device.

    Counts every storage that an operation makes while the block runs, forward and backward, until it is
    freed. Storages that existed before do not count; nor do an operation's inner work space, and what is
    allocated outside torch. Unlike an allocator's own figure it works on a CPU and is the same each time.

    Attributes:
        peak_bytes: the most bytes alive at once so far.
        live_bytes: the bytes alive now.

    Example:
        >>> with peak_memory() as memory:
        ...     a = torch.ones(1000)  # 4000 bytes
        ...     b = a * 2  # 4000 more
        ...     del a
        ...     c = b * 2
        >>> memory.peak_bytes, memory.live_bytes
        (8000, 8000)
    """

    def __init__(self) -> None:
        super().__init__()
        self._key = storage_key.use
        self.peak_bytes = 0
        self.live_bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tensors_of((args, (kwargs or {}).values())):
            self.existed(tensor)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of((result,)):
            self.made(tensor)
        return result

    def existed(self, tensor: Tensor) -> None:
        """Note a tensor whose storage does not count, unless it is known already."""
        if tensor.layout == torch.strided:
            self._know(tensor.untyped_storage(), 0)

    def made(self, tensor: Tensor) -> None:
        """Count a tensor's storage, unless it is known already."""
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        self._know(storage, storage.nbytes())

    def _know(self, storage: torch.UntypedStorage, size: int) -> None:
        key = self._key(storage)
        if key in self._known:
            return

        def gone(_: Any) -> None:
            del self._known[key]
            if size:
                self.changed(-size, key)

        self._known[key] = weakref.ref(storage, gone)
        if size:
            self.changed(size, key)

    def changed(self, size: int, key: int) -> None:
        """Called when a storage came (its bytes) or went (minus its bytes); its key is its own in between."""
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments or results, which hold lists of them at most."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)) or type(value) is _VALUES:
            yield from tensors_of(value)


_VALUES: Any = type({}.values())
