"""Count the bytes of tensors as they come and go."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class peak_memory(TorchDispatchMode):  # noqa: N801 - used as torch.no_grad is
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
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self.live_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._note(value, new=False)
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._note(value, new=True)
        return result

    def _note(self, tensor: Tensor, *, new: bool) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes() if new else 0
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size
