"""Copies the state that a forward pass or a step changes, apart from gradients, and restores it on failure."""

from __future__ import annotations

import dataclasses
import random
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradgate.torch_compat import OWN_BUFFERS, OWN_MODULES, OWN_PARAMETERS, is_dtensor, tensor_version

LARGE_BYTES = 1 << 20
_CHUNK = 1 << 20
_FACTOR = 0x5851F42D4C957F2D  # Knuth's MMIX multiplier: odd, so that no bit of a product is lost
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: ",  # RuntimeError of the CPU allocator
    "MPS backend out of memory",  # RuntimeError on Apple's GPUs
    "CUDA error: out of memory",  # AcceleratorError outside the caching allocator
    "CUBLAS_STATUS_ALLOC_FAILED",  # RuntimeError from cuBLAS, for its workspace
)
_OF_MODULES = ("training", OWN_PARAMETERS, OWN_BUFFERS, OWN_MODULES)
_HOOKS = frozenset(vars(nn.Module())) - {*_OF_MODULES}
# A wrapper's parameters, buffers and submodules are restored; its other attributes belong to its engine.
_WRAPPERS = (DistributedDataParallel, DataParallel)


class AtRest:
    """Checksums that replace copies of large tensors, such as a frozen backbone, that no window has changed."""

    def __init__(self) -> None:
        # Keyed by id, because tensors compare by value; a finalizer removes dead entries.
        self._marks: dict[int, tuple[int, int, int]] = {}
        self._moving: set[int] = set()

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor needs no copy. Call before each window: other code may write to tensors."""
        mark = self._marks.get(id(tensor))
        if mark is None:
            return False
        if mark[:2] != _version_and_pointer(tensor):
            self._marks[id(tensor)] = (*_version_and_pointer(tensor), checksum(tensor))
        return True

    def changed(self, tensor: Tensor) -> bool:
        """Return whether a tensor has changed since its checksum was recorded."""
        return self._marks[id(tensor)][2] != checksum(tensor)

    def learn(self, copies: Iterable[tuple[Tensor, Tensor]], written: Container[int] = ()) -> None:
        """Record which tensors a window left unchanged, by comparing them with their earlier copies.

        Tensors whose ids are in ``written`` count as changed, even if they hold the same values.
        """
        for tensor, copied in copies:
            if id(tensor) in self._moving or copied.layout != torch.strided or copied.nbytes <= LARGE_BYTES:
                continue
            weakref.finalize(tensor, self.drop, id(tensor))
            same = id(tensor) not in written and tensor.shape == copied.shape
            if same and _same_bits(tensor.detach().to(copied.device), copied):
                self._marks[id(tensor)] = (*_version_and_pointer(tensor), checksum(tensor))
            else:
                self._marks.pop(id(tensor), None)
                self._moving.add(id(tensor))

    def drop(self, number: int) -> None:
        """Forget the tensor with this id, so that it is copied again."""
        self._marks.pop(number, None)
        self._moving.discard(number)


class Snapshot:
    """A copy of the state that objects hold, to be restored into the same objects, bit for bit.

    It covers tensors, numbers and containers, even in the attributes of objects, and costs as much memory as the
    originals. Restoring removes what was added since.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._seen: set[int] = set()
        self._undo: list[Callable[[], object]] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        for value in values:
            self._record(value, type(value).__name__)

    @classmethod
    def before_step(cls, parameters: Iterable[Tensor], optimizers: Iterable[Optimizer]) -> Snapshot:
        """Copy what a step changes: parameters, optimizer state and group settings."""
        kept = (part for optimizer in optimizers for part in (optimizer.state, optimizer.param_groups))
        return cls([*parameters, *kept])

    def restore(self) -> None:
        """Restore everything."""
        for undo in reversed(self._undo):
            undo()
        for tensor, copied in self._copies:
            _put_back(tensor, copied)

    def _record(self, value: Any, name: str) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            if not is_lazy(value) and not value.is_meta:
                self._record_tensor(value, name)
        elif isinstance(value, nn.Module):
            self._record_attributes(value, name, _OF_MODULES if isinstance(value, _WRAPPERS) else None)
        elif isinstance(value, (list, deque, dict, set)):
            self._undo.append(undo_container(value))
            items = list(value.items()) if isinstance(value, dict) else [("...", item) for item in value]
            for key, item in items:
                self._record(item, f"{name}.{key}" if isinstance(key, (str, int)) else name)
        elif isinstance(value, tuple):
            for item in value:
                self._record(item, name)
        elif isinstance(value, torch.Generator):
            state = value.get_state()
            self._undo.append(lambda: value.set_state(state))
        elif hasattr(value, "__dict__") and not isinstance(value, type) and self._searches(value):
            self._record_attributes(value, name, None)

    def _searches(self, value: Any) -> bool:
        return True

    def _record_attributes(self, value: Any, name: str, only: tuple[str, ...] | None) -> None:
        attributes = vars(value)
        saved = {k: v for k, v in attributes.items() if (k not in _HOOKS if only is None else k in only)}

        def undo() -> None:
            for key in [key for key in attributes if key not in saved and only is None and key not in _HOOKS]:
                del attributes[key]
            attributes.update(saved)

        self._undo.append(undo)
        for key, item in saved.items():
            self._record(item, name if key.startswith("_") else f"{name}.{key}")

    def _record_tensor(self, tensor: Tensor, name: str) -> None:
        self._copies.append((tensor, tensor.detach().clone()))


class ForwardState(Snapshot):
    """A copy of the state of modules and random generators, to be restored.

    The copy covers parameters and buffers, and the tensors, numbers and containers in attributes of modules,
    dataclasses and namespaces. Other objects are not searched. Parameters in ``owned`` and tensors ``at_rest`` are
    not copied, because a window does not change them.
    """

    def __init__(
        self, modules: Iterable[Any], owned: Iterable[Tensor] = (), at_rest: AtRest | None = None
    ) -> None:
        self._owned = {id(tensor) for tensor in owned}
        self._at_rest = AtRest() if at_rest is None else at_rest
        self._resting: list[tuple[str, Tensor]] = []
        self._versions: list[tuple[Tensor, tuple[int, int]]] = []  # of the parameters that are copied
        super().__init__(modules)
        self._undo += random_states()

    def changed_at_rest(self) -> list[str]:
        """Return the names of tensors that were not copied but have changed. The next window copies them."""
        changed = [name for name, tensor in self._resting if self._at_rest.changed(tensor)]
        for _, tensor in self._resting if changed else ():
            self._at_rest.drop(id(tensor))
        return changed

    def settle(self) -> None:
        """After a window, record which tensors need no copy in later windows."""
        # In the first window, a momentum encoder may be equal to its model, so that moving it changes no value.
        written = {
            id(tensor) for tensor, version in self._versions if version != _version_and_pointer(tensor)
        }
        self._at_rest.learn(self._copies, written)

    def _searches(self, value: Any) -> bool:
        return isinstance(value, SimpleNamespace) or dataclasses.is_dataclass(value)

    def _record_tensor(self, tensor: Tensor, name: str) -> None:
        if id(tensor) in self._owned:
            return
        if self._at_rest.holds(tensor):
            self._resting.append((name, tensor))
            return
        if isinstance(tensor, nn.Parameter):
            self._versions.append((tensor, _version_and_pointer(tensor)))
        large = tensor.nbytes > LARGE_BYTES if tensor.layout == torch.strided else False
        detached = tensor.detach()
        # Large copies go to host memory, because device memory is scarce.
        self._copies.append((tensor, detached.to("cpu", copy=True) if large else detached.clone()))


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def undo_container(value: Any) -> Callable[[], None]:
    """Return a function that gives a list, deque, dict or set back the items, and the order, that it has now."""
    kind: Any = next(kind for kind in (OrderedDict, dict, list, set, deque) if isinstance(value, kind))
    # The methods of the kind itself, because those of a subclass may refuse. dict.items ignores move_to_end.
    items = kind.items if issubclass(kind, dict) else kind.__iter__
    before = list(items(value))

    def undo() -> None:
        now = list(items(value))
        if len(now) != len(before) or not all(map(_is_same, now, before)):
            kind.clear(value)
            (kind.extend if kind in (list, deque) else kind.update)(value, before)

    return undo


def _is_same(now: Any, before: Any) -> bool:
    if type(now) is tuple and type(before) is tuple and len(now) == len(before):
        return all(a is b for a, b in zip(now, before, strict=True))
    return now is before


@torch.no_grad()
def _put_back(tensor: Tensor, copied: Tensor) -> None:
    """Write a copy back only if it differs, because an unchanged tensor may be read-only."""
    if tensor.shape != copied.shape or tensor.dtype != copied.dtype:
        tensor.data = copied.to(tensor.device)
        return
    if not _same_bits(tensor.detach().to(copied.device), copied):
        with torch.inference_mode(tensor.is_inference()):
            tensor.detach().copy_(copied)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits; False if their bits cannot be read."""
    if one.layout != torch.strided or one.is_quantized or is_dtensor(one):
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def random_states() -> list[Callable[[], object]]:
    """Return functions that restore the random generators of torch, Python and numpy."""
    cpu, python = torch.get_rng_state(), random.getstate()
    undo: list[Callable[[], object]] = [lambda: torch.set_rng_state(cpu), lambda: random.setstate(python)]
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        undo.append(lambda: torch.cuda.set_rng_state_all(devices))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        drawn = numpy.get_state()
        undo.append(lambda: numpy.set_state(drawn))
    return undo


def checksum(tensor: Tensor) -> int:
    """Return a checksum that almost certainly changes if a value or the order of values changes."""
    data = _bytes(tensor.detach())
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


def _version_and_pointer(tensor: Tensor) -> tuple[int, int]:
    return (0 if tensor.is_inference() else tensor_version(tensor)), tensor.data_ptr()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means out of memory, judging by its type or message."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)
