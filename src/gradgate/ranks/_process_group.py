"""The processes that train together, and the two things they do: tell each other something, and add up tensors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.errors import RankError
from gradgate.torch_compat import default_store, sparse_tensor

_TEXT_BYTES = 512  # of what a rank says; the rest, if there is more, goes in a second round
_ROLL_CALL_SECONDS = 5.0
_BUCKET_BYTES = 25 << 20  # as DistributedDataParallel has it


class Ranks:
    """A process group.

    Args:
        group: of which this process is part; None for all of them.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        self.broken = False
        """Whether a collective has failed: nobody can be told anything any more."""
        self.sent_bytes = 0
        self.collectives = 0

    def tell(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        """Give each rank what all of them say, in the order of ranks. Waits for all of them.

        One small all-gather; a second one only if somebody says more than fits.

        Raises:
            RankError: somebody died, or did not come within the group's time-out.
        """
        text = json.dumps(said).encode()
        lengths, texts = self._gather(text, _TEXT_BYTES)
        if max(lengths) > _TEXT_BYTES:
            lengths, texts = self._gather(text, max(lengths))
        return [json.loads(one[:length]) for one, length in zip(texts, lengths, strict=True)]

    def _gather(self, text: bytes, size: int) -> tuple[list[int], list[bytes]]:
        header = len(text).to_bytes(8, "big")
        sent = torch.frombuffer(bytearray(header + text[:size].ljust(size)), dtype=torch.uint8).to(
            self.device
        )
        received = [torch.empty_like(sent) for _ in range(self.count)]
        self._run(lambda: dist.all_gather(received, sent, group=self._group), sent)
        whole = [bytes(one.tolist()) for one in received]
        return [int.from_bytes(one[:8], "big") for one in whole], [one[8:] for one in whole]

    @property
    def device(self) -> torch.device:
        """Where tensors have to lie that are sent: on a CPU where the backend takes them."""
        on_cpu = "cpu:" in str(dist.get_backend_config(self._group))
        return torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place. Shapes and order are the same on all."""
        for bucket in bucketed(tensors, lambda one: one.dtype):
            flat = torch.cat([one.reshape(-1) for one in bucket])
            self._run(partial(dist.all_reduce, flat, group=self._group), flat)
            for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                one.copy_(part.view_as(one))

    def add_up_sparse(self, tensor: Tensor) -> Tensor:
        """Return a sparse tensor's sum over ranks: what is in it, from all of them, put together."""
        tensor = tensor.coalesce()
        numbers = [int(one["entries"]) for one in self.tell({"entries": len(tensor.values())})]
        parts = [
            self._gathered(values, numbers) for values in (tensor.indices().T.contiguous(), tensor.values())
        ]
        indices, values = (torch.cat(part) for part in parts)
        return sparse_tensor(indices.T, values, tensor.shape).coalesce()

    def _gathered(self, values: Tensor, numbers: list[int]) -> list[Tensor]:
        """Return every rank's rows, whose numbers differ."""
        padded = values.new_zeros(max(numbers), *values.shape[1:])
        padded[: len(values)] = values
        received = [torch.empty_like(padded) for _ in numbers]
        self._run(lambda: dist.all_gather(received, padded, group=self._group), padded)
        return [one[:number] for one, number in zip(received, numbers, strict=True)]

    def put_together(self, batch: Any) -> list[Any]:
        """Return the batches of all ranks, in their order. They are pickled: inputs, not activations."""
        batches: list[Any] = [None] * self.count
        self._run(lambda: dist.all_gather_object(batches, batch, group=self._group), torch.empty(0))
        return batches

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank the first one's values."""
        for one in tensors:
            self._run(partial(dist.broadcast, one, group=self._group, group_src=0), one)

    def start_adding_up(self, tensor: Tensor) -> Any:
        """Begin to replace a tensor by its sum over ranks; :meth:`wait_for` ends it."""
        return self._run(lambda: dist.all_reduce(tensor, group=self._group, async_op=True), tensor)

    def wait_for(self, work: Any) -> None:
        """Wait until what was started is done."""
        self._checked(work.wait)

    def absent(self) -> list[int]:
        """Return the ranks that were not waiting where this one did when the wait failed; [] if nobody can tell.

        Who waited in vain says so in the store that the processes met in, and looks for some seconds who does not.
        """
        missing = [number for number in range(self.count) if number != self.rank]
        with suppress(
            RuntimeError, ValueError, AttributeError
        ):  # the store may be gone with the rank that held it
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

    def _run(self, collective: Callable[[], Any], sent: Tensor) -> Any:
        self.collectives += 1
        self.sent_bytes += sent.nbytes
        return self._checked(collective)

    def _checked(self, collective: Callable[[], Any]) -> Any:
        try:
            return collective()
        except RuntimeError as error:  # dist.DistError is one too
            self.broken = True
            raise lost(self, error) from error


_PHRASES = ("gloo", "NCCL", "Connection closed by peer", "Timed out waiting")


def is_lost(error: BaseException) -> bool:
    """Say whether an error comes from a collective in which another rank was waited for in vain."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)
    )


def lost(ranks: Ranks, error: BaseException) -> RankError:
    """Return an error that says so."""
    absent = ranks.absent()
    who = (
        "the others" if not absent else f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
    )
    return RankError(
        f"update: rank {ranks.rank} of {ranks.count} waited for {who} in vain ({str(error).splitlines()[0]}). What "
        "is waited for raised or died, or made fewer updates than this rank, and did not come within the time-out. "
        "Nothing was stepped here. Look at its first error, and give all ranks the same number of windows."
    )


def bucketed(tensors: Sequence[Tensor], dtype_of: Callable[[Tensor], torch.dtype]) -> list[list[Tensor]]:
    """Put tensors of one type and device together, as many as fit into a message, in their order."""
    buckets: list[list[Tensor]] = []
    open_ones: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    sizes: dict[int, int] = {}
    for one in tensors:
        key = dtype_of(one), one.device
        nbytes = one.numel() * key[0].itemsize
        bucket = open_ones.get(key)
        if bucket is None or sizes[id(bucket)] + nbytes > _BUCKET_BYTES:
            bucket = open_ones[key] = []
            sizes[id(bucket)] = 0
            buckets.append(bucket)
        bucket.append(one)
        sizes[id(bucket)] += nbytes
    return buckets
