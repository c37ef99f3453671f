"""Reductions over ranks that the user's code makes, and this process's place among the ranks."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._tracing import tracing
from gradgate.events import Ids, Reduced, Sharded
from gradgate.torch_compat import anything_compiled

_EXCHANGES = (
    *("all_reduce", "reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "gather", "scatter"),
    *("all_reduce_coalesced", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
    *("send", "recv", "isend", "irecv"),
)
# Whoever imports one of these has its gradients exchanged in ways that are not watched.
_OTHERS = ("deepspeed", "horovod", "fairscale", "colossalai", "megatron")
_SHARDED = ("DTensor", "FlatParameter")  # parameters of FSDP and of tensor parallelism


@dataclass
class _Wrapper:
    """A module in DistributedDataParallel."""

    ref: weakref.ref[Any]
    armed: bool | None = None  # does the backward of its last forward synchronise? None: it has not run


class Ranks:
    """Watches exchanges between ranks, and wrappers that synchronise by themselves."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._wrappers: list[_Wrapper] = []
        self._place = (0, 1)
        self._sharded = False
        self._seen: Ids = frozenset()

    def install(self) -> None:
        """Stand around the exchanges, DDP and the sampler that divides data."""
        if not dist.is_available():
            return
        patches = self._recorder.patches
        for name in _EXCHANGES:
            if hasattr(dist, name):
                patches.wrap(dist, name, self._around)
        patches.wrap(DistributedDataParallel, "__init__", self._around_init)
        patches.wrap(DistributedDataParallel, "forward", self._around_forward)
        patches.wrap(DistributedSampler, "__init__", self._around_sampler)

    def synchronises(self, reached: Ids) -> bool | None:
        """Say whether gradients of these are averaged over ranks in the backward to come; None without DDP."""
        if reached is not self._seen:
            self._seen = reached
            self.place()
            tensors = self._recorder.parameters.tensors(reached)
            self._sharded = self._sharded or any(type(one).__name__ in _SHARDED for _, one in tensors)
        states = []
        for wrapper in self._wrappers:
            module = wrapper.ref()
            if module is None or anything_compiled():  # its forward is then not seen
                continue
            known = (self._recorder.parameters.numbers.known(one) for one in module.parameters())
            if any(number in reached for number in known if number is not None):
                states.append(wrapper.armed)
        return any(states) if states else None

    def _around_init(self, original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
        with self._recorder.library():
            original(wrapper, *args, **kwargs)
        self._wrappers.append(_Wrapper(weakref.ref(wrapper)))
        self.place()

    def _around_forward(
        self, original: Any, module: DistributedDataParallel, *args: Any, **kwargs: Any
    ) -> Any:
        if tracing() or not self._recorder.active:
            return original(module, *args, **kwargs)
        for wrapper in self._wrappers:
            if wrapper.ref() is module and torch.is_grad_enabled():
                wrapper.armed = bool(module.require_backward_grad_sync)
        return original(module, *args, **kwargs)

    def _around_sampler(self, original: Any, sampler: Any, *args: Any, **kwargs: Any) -> None:
        original(sampler, *args, **kwargs)
        recorder = self._recorder
        if recorder.active:
            with recorder.working():
                recorder.add(Sharded(recorder.site(), int(sampler.num_replicas)))

    def _around(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        start = recorder.clock
        result = original(*args, **kwargs)
        if recorder.active and not recorder.quiet and not tracing():
            recorder.took("exchange", start, recorder.journal.count)
            with recorder.working():
                self._record(original.__name__, args, kwargs)
        return result

    def _record(self, name: str, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        site = recorder.site()
        if not site:
            return
        self.place()
        tensors: list[Tensor] = []
        for value in (*args, *kwargs.values()):
            tensors += [
                one
                for one in (value if isinstance(value, (list, tuple)) else [value])
                if isinstance(one, Tensor)
            ]
        numbers = {self._gradients.addresses.get(one.data_ptr()) for one in tensors} - {None}
        ids = recorder.parameters.same(number for number in numbers if number is not None)
        op = str(kwargs.get("op", args[1] if len(args) > 1 and name == "all_reduce" else "sum"))
        size = max((one.numel() for one in tensors), default=0)
        recorder.add(Reduced(site, f"{name}:{op.rpartition('.')[2].lower()}", ids, self._place[1], size))
        self._gradients.note(ids)

    def place(self) -> tuple[int, int, bool]:
        """Return rank, number of ranks, and whether a wrapper synchronises."""
        if dist.is_available() and dist.is_initialized():
            self._place = (dist.get_rank(), dist.get_world_size())
        elsewhere = self._sharded or any(name in sys.modules for name in _OTHERS)
        return (*self._place, bool(self._wrappers) or elsewhere)
