"""Record the communication between ranks that the user's code starts, and the rank of this process."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._measures import sample, sum_of
from gradgate.checker.recording._patches import Around
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import is_sharded
from gradgate.checker.recording._user_objects import is_a, parameters_in, tensors_in
from gradgate.events import Ids, Reduced, Sharded, Wrapped
from gradgate.torch_compat import anything_compiled

COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "gather", "scatter"),
    *("all_reduce_coalesced", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
    *("send", "recv", "isend", "irecv"),
)
# These libraries average gradients themselves. The watcher does not see how.
_OTHERS = ("deepspeed", "horovod", "fairscale", "colossalai", "megatron")
_OPS = (dist.ReduceOp, type(dist.ReduceOp.SUM)) if dist.is_available() else ()
_SHARDED = ("DTensor", "FlatParameter")  # parameters of FSDP and of tensor parallelism


@dataclass
class _Wrapper:
    """What is known about a DistributedDataParallel."""

    ref: weakref.ref[Any]
    parameters: Ids  # the parameters whose gradients it averages
    # Whether the next backward pass all-reduces; None if no forward pass has run since the last backward pass.
    armed: bool | None = None
    called: bool = False  # whether a forward pass with gradients has ever run


class RankRecorder:
    """Watches collectives, DistributedDataParallel and DistributedSampler."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._wrappers: list[_Wrapper] = []
        self._rank, self._world = 0, 1
        self._sharded = False
        self._seen: Ids = frozenset()

    def synchronizes(self, reached: Ids) -> tuple[bool | None, bool]:
        """Return whether the next backward pass averages these gradients over ranks, and whether it bypasses DDP.

        Without DDP, the first value is None. DDP averages only in the first complete backward pass that follows a
        call of its ``forward``. A DDP that was freed counts only if it was never called, because its module is then
        trained without it.
        """
        parameters = self._recorder.parameters
        if reached is not self._seen:
            self._seen = reached
            self.position()
            tensors = parameters.tensors(reached)
            self._sharded = self._sharded or any(type(each).__name__ in _SHARDED for _, each in tensors)
        states = []
        for wrapper in self._wrappers:
            # Compiled code doesn't call our wrapper of forward.
            if (wrapper.ref() is None and wrapper.called) or anything_compiled():
                continue
            if wrapper.parameters & reached:
                states.append(wrapper.armed)
                wrapper.armed = None if wrapper.parameters <= reached and wrapper.armed else wrapper.armed
        return (any(states) if states else None), None in states and not any(states)

    def wrapped(self, wrapper: Any, *_: Any, **__: Any) -> Around:
        """Remember that DDP wraps a module."""
        yield
        recorder = self._recorder
        ids = recorder.parameters.ids(each for each in parameters_in(wrapper) if each.requires_grad)
        self._wrappers.append(_Wrapper(weakref.ref(wrapper), ids))
        recorder.add(Wrapped(recorder.site(), ids))
        self.position()

    def forward(self, module: Any, *_: Any, **__: Any) -> None:
        """Remember whether the next backward pass of this DDP module all-reduces."""
        for wrapper in self._wrappers:
            wrapped = wrapper.ref()
            if wrapped is not None and wrapped is module and torch.is_grad_enabled():
                wrapper.armed, wrapper.called = bool(wrapped.require_backward_grad_sync), True

    def sampler(self, sampler: Any, *_: Any, **__: Any) -> Around:
        """Record that a sampler divides the data among ranks."""
        yield
        self._recorder.add(Sharded(self._recorder.site()))

    def collective(self, name: str, /, *args: Any, **kwargs: Any) -> Around:
        """Record a collective that the user's code calls."""
        yield
        recorder = self._recorder
        site = recorder.site()
        if not site:
            return
        self.position()
        tensors = tensors_in(*args, *kwargs.values())
        ids = recorder.parameters.same(map(self._gradients.number_of, tensors))
        op = str(next((each for each in (*args, *kwargs.values()) if is_a(each, *_OPS)), "sum"))
        size = max((each.numel() for each in tensors), default=0)
        recorder.add(Reduced(site, f"{name}:{op.rpartition('.')[2].lower()}", ids, size))
        self._gradients.note(ids)

    def ended(self) -> None:
        """Measure the final values of the parameters, to compare them with those of the other ranks."""
        if self.position()[1] > 1:
            for number, each in self._recorder.parameters.numbers.alive():
                record = self._recorder.parameters.records[number]
                if record.began is not None and not is_sharded(each):
                    record.ended = sum_of(sample(each))

    def position(self) -> tuple[int, int, bool]:
        """Return the rank, the number of ranks, and whether anything averages gradients over ranks."""
        if dist.is_available() and dist.is_initialized():
            self._rank, self._world = dist.get_rank(), dist.get_world_size()
        elsewhere = self._sharded or any(name in sys.modules for name in _OTHERS)
        return self._rank, self._world, bool(self._wrappers) or elsewhere
