"""Large tensors that windows do not change, such as a frozen backbone: they need no copy, only a checksum."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from gradgate.torch_compat import tensor_version

LARGE_BYTES = 1 << 20
_CHUNK = 1 << 20
_FACTOR = 0x5851F42D4C957F2D  # Knuth's, of MMIX: odd, so that no bit of a product is lost


class AtRest:
    """What is known of the large tensors around a window: whether it has been seen to change them."""

    def __init__(self) -> None:
        # By id, as tensors compare by value; a finalizer takes out what is gone.
        self._marks: dict[int, tuple[int, int, int]] = {}
        self._moving: set[int] = set()

    def holds(self, tensor: Tensor) -> bool:
        """Say whether a tensor needs no copy. Called before a window, outside of which it may have changed."""
        mark = self._marks.get(id(tensor))
        if mark is None:
            return False
        if mark[:2] != _place(tensor):
            self._marks[id(tensor)] = (*_place(tensor), checksum(tensor))
        return True

    def changed(self, tensor: Tensor) -> bool:
        """Say whether a tensor has changed since."""
        return self._marks[id(tensor)][2] != checksum(tensor)

    def learn(self, copies: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Compare tensors, after a window, with their copies from before it."""
        for tensor, copied in copies:
            if id(tensor) in self._moving or copied.layout != torch.strided or copied.nbytes <= LARGE_BYTES:
                continue
            weakref.finalize(tensor, self._drop, id(tensor))
            if tensor.shape == copied.shape and torch.equal(tensor.detach().to(copied.device), copied):
                self._marks[id(tensor)] = (*_place(tensor), checksum(tensor))
            else:
                self._moving.add(id(tensor))

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Have tensors copied again."""
        for tensor in tensors:
            self._drop(id(tensor))

    def _drop(self, number: int) -> None:
        self._marks.pop(number, None)
        self._moving.discard(number)


def checksum(tensor: Tensor) -> int:
    """Return a number that differs, in all likelihood, after any change of a value or of the order of values."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if data.storage_offset() % 4:
        data = data.clone()
    padded = data.numel() // 4 * 4
    words = data[:padded].view(torch.int32)
    weights = torch.arange(1, _CHUNK + 1, device=data.device) * 2 + 1
    total = sum(int(byte) << (8 * place) for place, byte in enumerate(data[padded:].tolist()))
    for number, chunk in enumerate(words.split(_CHUNK)):
        part = int((chunk * weights[: len(chunk)]).sum())
        total = ((total ^ part) * _FACTOR + number) % 2**64
    return total


def _place(tensor: Tensor) -> tuple[int, int]:
    return (0 if tensor.is_inference() else tensor_version(tensor)), tensor.data_ptr()
