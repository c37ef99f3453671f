"""Reductions over ranks that the user's code makes, and this process's place among the ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.events import Reduced
from gradgate.watcher._gradients import Gradients
from gradgate.watcher._recorder import Recorder


class Ranks:
    """Watches all_reduce, and wrappers that synchronise by themselves."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._wrapped = False
        self._place = (0, 1)

    def install(self) -> None:
        """Stand around all_reduce and DDP's constructor."""
        if not dist.is_available():
            return
        patches = self._recorder.patches
        for name in ("all_reduce", "reduce", "all_gather", "broadcast"):
            patches.wrap(dist, name, self._around)
        patches.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", self._around_init)

    def _around_init(self, original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
        with self._recorder.library():
            original(wrapper, *args, **kwargs)
        self._wrapped = True
        self.place()

    def _around(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        result = original(tensor, *args, **kwargs)
        if recorder.active and not recorder.quiet:
            with recorder.working():
                self.place()
                numbers: set[int] = set()
                for one in tensor if isinstance(tensor, list) else [tensor]:
                    if isinstance(one, Tensor):
                        number = self._gradients.addresses.get(one.data_ptr())
                        numbers |= set() if number is None else {number}
                op = kwargs.get("op", args[0] if args else None)
                ids = recorder.parameters.same(numbers)
                name = f"{original.__name__}:{str(op).rpartition('.')[2].lower()}"
                recorder.add(Reduced(recorder.site(), name, ids, self._place[1]))
                self._gradients.note(ids)
        return result

    def place(self) -> tuple[int, int, bool]:
        """Return rank, number of ranks, and whether a wrapper synchronises."""
        if dist.is_available() and dist.is_initialized():
            self._place = (dist.get_rank(), dist.get_world_size())
        return (*self._place, self._wrapped)
