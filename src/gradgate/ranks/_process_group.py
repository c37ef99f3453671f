"""Exchanges small messages and all-reduces tensors between the processes that train together."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.errors import RankError
from gradgate.torch_compat import default_store, sparse_tensor

_TEXT_BYTES = 512  # of a message; a longer one takes a second all-gather
_ROLL_CALL_SECONDS = 5.0
_BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel


class RankGroup:
    """A process group.

    Args:
        group: a group that this process belongs to; None for all processes.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        self.processes = tuple(dist.get_process_group_ranks(group))
        """The rank of each process among all processes. Messages show these, as launchers do."""
        self.unit = 1.0
        """The unit in which ranks add sharded gradients in the next window."""
        self.broken = False
        """Whether a collective has failed, so that no other can succeed."""
        self.collectives = 0

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of all ranks, in their order. Waits for all of them.

        Uses one small all-gather, and a second one only if a message is too long.

        Raises:
            RankError: a rank died, did not join within the group's time-out, or is at another point of its loop.
        """
        text = json.dumps(message).encode()
        lengths, texts = self._gather(text, _TEXT_BYTES)
        if max(lengths) > _TEXT_BYTES:
            lengths, texts = self._gather(text, max(lengths))
        received = [json.loads(text[:length]) for text, length in zip(texts, lengths, strict=True)]
        elsewhere = [rank for rank, other in enumerate(received) if other.keys() != message.keys()]
        if elsewhere:
            raise RankError(
                f"update: ranks {self.processes[self.rank]} and {self.processes[elsewhere[0]]} are at "
                "different points of their loops, because one of them left a window early, by an error or an "
                "interrupt, and began another one. No step was made here. Fix the first error of that rank, "
                "and start all ranks again."
            )
        return received

    def _gather(self, text: bytes, size: int) -> tuple[list[int], list[bytes]]:
        header = len(text).to_bytes(8, "big")
        sent = torch.frombuffer(bytearray(header + text[:size].ljust(size)), dtype=torch.uint8).to(
            self.device
        )
        received = [torch.empty_like(sent) for _ in range(self.count)]
        self._run(lambda: dist.all_gather(received, sent, group=self._group))
        whole = [bytes(tensor.tolist()) for tensor in received]
        return [int.from_bytes(sent[:8], "big") for sent in whole], [sent[8:] for sent in whole]

    @property
    def device(self) -> torch.device:
        """The device for tensors that are sent: the CPU if the backend supports it."""
        on_cpu = "cpu:" in str(dist.get_backend_config(self._group))
        return torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor with its sum over ranks, in place. Shapes and order must match across ranks."""
        for bucket in _bucketed(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            self._run(partial(dist.all_reduce, flat, group=self._group))
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def add_gradients(self, parameters: Sequence[Tensor], kinds: Sequence[int]) -> None:
        """Replace each gradient with its sum over ranks.

        ``kinds`` are those of the sums: 0 no rank has a gradient, 1 dense, 2 all gradients are sparse.
        """
        for parameter, kind in zip(parameters, kinds, strict=True):
            if kind and parameter.grad is None:
                parameter.grad = _empty(parameter, sparse=kind == 2)
            elif kind == 1 and parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.all_reduce([gradient for gradient in gradients if not gradient.is_sparse])
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = self.all_reduce_sparse(parameter.grad)

    def all_reduce_sparse(self, tensor: Tensor) -> Tensor:
        """Return a sparse tensor's sum over ranks: the entries of all ranks in one tensor."""
        tensor = tensor.coalesce()
        numbers = [int(other["entries"]) for other in self.exchange({"entries": len(tensor.values())})]
        parts = [
            self.gather_rows(values, numbers) for values in (tensor.indices().T.contiguous(), tensor.values())
        ]
        indices, values = (torch.cat(part) for part in parts)
        return sparse_tensor(indices.T, values, tensor.shape).coalesce()

    def gather_rows(self, values: Tensor, numbers: list[int]) -> list[Tensor]:
        """Return every rank's rows; ranks may have unequal numbers of rows. Rows of any dtype are sent as bytes."""
        padded = values.new_zeros(max(numbers), *values.shape[1:])
        padded[: len(values)] = values
        sent = padded.reshape(-1).view(torch.uint8)
        received = [torch.empty_like(sent) for _ in numbers]
        self._run(lambda: dist.all_gather(received, sent, group=self._group))
        whole = [rows.view(values.dtype).view_as(padded) for rows in received]
        return [rows[:number] for rows, number in zip(whole, numbers, strict=True)]

    def gather_objects(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order. Pickles them, so it suits inputs but not activations."""
        of_ranks: list[Any] = [None] * self.count
        self._run(lambda: dist.all_gather_object(of_ranks, mine, group=self._group))
        return of_ranks

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast the tensors of rank 0."""
        for tensor in tensors:
            self._run(partial(dist.broadcast, tensor, group=self._group, group_src=0))

    def absent(self) -> list[int]:
        """Return the ranks that did not join the collective that failed here, or [] if unknown.

        Each rank whose collective failed sets a key in the common store. Ranks that set none within a few seconds
        were absent.
        """
        missing = [number for number in range(self.count) if number != self.rank]
        # The store may be gone, together with the rank that hosted it.
        with suppress(RuntimeError, ValueError, AttributeError):
            store = default_store()
            name = self._group.group_name if self._group is not None else "world"
            place = f"gradgate/{name}/{self.collectives}"
            store.set(f"{place}/{self.rank}", "here")
            until = time.monotonic() + _ROLL_CALL_SECONDS
            while missing and time.monotonic() < until:
                missing = [number for number in missing if not store.check([f"{place}/{number}"])]
                time.sleep(0.02)
            return missing
        return []

    def _run(self, collective: Callable[[], Any]) -> Any:
        self.collectives += 1
        try:
            return collective()
        except RuntimeError as error:  # includes dist.DistError
            self.broken = True
            raise lost(self, error) from error


def _empty(parameter: Tensor, *, sparse: bool) -> Tensor:
    dtype = parameter.grad_dtype or parameter.dtype
    if not sparse:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    # Sparse in rows, as embeddings are.
    indices = torch.empty(1, 0, dtype=torch.long, device=parameter.device)
    values = torch.empty(0, *parameter.shape[1:], dtype=dtype, device=parameter.device)
    return sparse_tensor(indices, values, parameter.shape)


_PHRASES = ("gloo", "NCCL", "Connection closed by peer", "Timed out waiting")


def is_lost(error: BaseException) -> bool:
    """Return whether an error comes from a collective that another rank did not join."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)
    )


def lost(ranks: RankGroup, error: BaseException) -> RankError:
    """Return the error of a collective that other ranks did not join."""
    absent = ranks.absent()
    numbers = ", ".join(str(ranks.processes[number]) for number in absent)
    who = f"rank{'s' if len(absent) > 1 else ''} {numbers}" if absent else "the others"
    return RankError(
        f"update: rank {dist.get_rank()} of {dist.get_world_size()} waited for {who}, without an answer "
        f"({str(error).splitlines()[0]}). A missing rank has raised, died, or made fewer updates than this one. "
        "No step was made here. See that rank's first error, and give all ranks equally many windows."
    )


def _bucketed(tensors: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    """Return tensors in buckets of limited size, grouped by dtype and device, in order."""
    buckets: dict[tuple[torch.dtype, torch.device, int], list[Tensor]] = {}
    sizes = Counter[tuple[torch.dtype, torch.device]]()
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        buckets.setdefault((*kind, sizes[kind] // _BUCKET_BYTES), []).append(tensor)
        sizes[kind] += tensor.nbytes
    return buckets.values()
