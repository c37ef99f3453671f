"""Follow what a pass holds in memory: each storage that comes and goes, who made it, what was there before."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import flop_registry

from gradgate.memory._peak import peak_memory, tensors_of

# What these keep for the backward pass is decided by a library, and their fakes know nothing of it.
_UNKNOWN = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")


MANY = 1009
"""Samples of a fake pass: a prime that no layer is likely to be wide by, so that what it divides is theirs."""


class NotForeseeableError(Exception):
    """Fake tensors cannot run this; the reason is the text."""


class TooLongError(Exception):
    """A pass of many samples takes too many operations to be followed."""


@dataclass
class Trace:
    """The memory of one forward and backward pass.

    Attributes:
        sizes: bytes of each storage that came (positive) or went (negative), in order.
        makers: of each, the module that made it; "" outside of modules.
        parameters: the real tensors that a gradient reached.
        others: the other real tensors that were used: buffers, frozen parameters.
        mixes: operations that mix the samples of a micro-batch.
        operations: how many ran.
        flops: of each product and convolution, the floating-point operations.
        mixed: a storage's size may be linear in the samples and more: a queue of older ones was appended.
    """

    sizes: list[int] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)
    mixes: set[str] = field(default_factory=set)
    operations: int = 0
    flops: list[int] = field(default_factory=list)
    mixed: bool = False

    @property
    def peak_bytes(self) -> int:
        """The most that was live at once."""
        return max(itertools.accumulate(self.sizes), default=0)

    def let_go(self) -> None:
        """Hold the tensors no longer."""
        self.parameters.clear()
        self.others.clear()

    def with_samples(self, samples: int) -> Trace:
        """Return the same pass with other samples, from one with ``MANY``: what that prime divides is theirs."""

        def scaled(sizes: list[int]) -> list[int]:
            return [size // MANY * samples if size % MANY == 0 else size for size in sizes]

        return dataclasses.replace(self, sizes=scaled(self.sizes), flops=scaled(self.flops))


class Fakes:
    """Fake tensors, which have shapes and no values, and the real ones that they stand for.

    The mode holds its fakes weakly. One that is made anew for every operation would count as a new storage.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the fake of a real tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self.mode.from_tensor(tensor)
        return self._known[id(tensor)][1]


class Follower(peak_memory):
    """Notes each storage that comes and goes, who made it, and what was there before."""

    is_trial = True  # for who watches the training: what runs in here is none

    def __init__(self, fakes: Fakes | None) -> None:
        super().__init__()
        self.trace = Trace()
        self.inputs: set[int] = set()
        self.most_operations: float = math.inf
        self._fakes = fakes
        self._real: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: a tensor, and its fake
        self._before: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # what a real pass has written: a tensor, and its copy
        self._there: set[int] = set()  # storages that were there before
        self._shapes: set[tuple[int, ...]] = set()  # and theirs, in any order
        self._makers: dict[int, str] = {}  # of storages
        self._modules: list[str] = []
        self._names: dict[int, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "prim":  # asks on which device a fake is: thousands of times
            return func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self.trace.operations += 1
        if self.trace.operations > self.most_operations:
            raise TooLongError
        if self._fakes is not None and name.startswith(_UNKNOWN):
            raise NotForeseeableError(f"what {name} keeps for the backward pass is decided by a library")
        normalises = "batch_norm" in name and "backward" not in name
        if normalises and any(argument is True for argument in args):
            self.trace.mixes.add("batch norm")
        if normalises:  # it writes its statistics, and its schema does not say so
            self._keep(args)
        elif func._schema.is_mutable:
            self._keep(
                value
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        if self._fakes is not None:
            # Given fakes only, the mode finds in its cache what it has seen before, and is twice as quick.
            args = tuple(self._as_fakes(one) for one in args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        flops = flop_registry.get(func._overloadpacket)
        if flops is not None:
            self.trace.flops.append(flops(*args, **(kwargs or {}), out_val=result))
        return result

    def existed(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or type(tensor) is FakeTensor:
            super().existed(tensor)
            return
        if id(tensor) not in self._real:
            key = tensor.untyped_storage()._cdata
            if self._fakes is None and key in self._known and key not in self._there:
                return  # made in this pass
            self._there.add(key)
            self._shapes.add(tuple(sorted(tensor.shape)))
            self._real[id(tensor)] = tensor, tensor if self._fakes is None else self._fakes.of(tensor)
        super().existed(self._real[id(tensor)][1])

    def made(self, tensor: Tensor) -> None:
        if self._fakes is not None and tensor.numel() % MANY and max(tensor.shape, default=0) > MANY:
            self.trace.mixed |= tuple(sorted(tensor.shape)) not in self._shapes
        super().made(tensor)

    def _as_fakes(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            if type(argument) is FakeTensor or argument.layout != torch.strided:
                return argument
            self.existed(argument)
            return self._real[id(argument)][1]
        return [self._as_fakes(one) for one in argument] if type(argument) is list else argument

    def changed(self, size: int, key: int) -> None:
        super().changed(size, key)
        maker = self._modules[-1] if self._modules else ""
        self.trace.sizes.append(size)
        self.trace.makers.append(
            self._makers.setdefault(key, maker) if size > 0 else self._makers.pop(key, "")
        )

    def _keep(self, written: Iterable[Any]) -> None:
        """Copy what an operation is about to write, where it was there before.

        Fake tensors need that too: of a single number they keep the value, in the real tensor itself.
        """
        for tensor in tensors_of(written):
            if type(tensor) is FakeTensor or tensor.requires_grad or id(tensor) in self._before:
                continue
            self.existed(tensor)
            if tensor.untyped_storage()._cdata in self._there:
                with _disable_current_modes():
                    self._before[id(tensor)] = tensor, tensor.detach().clone()

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo what the pass wrote into tensors that were there before."""
        for tensor, copied in self._before.values():
            tensor.copy_(copied)

    @contextmanager
    def naming_modules(self) -> Iterator[None]:
        """Know within which module an operation runs."""

        def enter(module: nn.Module, _: Any) -> None:
            if id(module) not in self._names:
                self._names.update((id(inner), name) for name, inner in module.named_modules())
            self._modules.append(self._names[id(module)])

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._modules.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finished(self) -> Trace:
        """Return what was followed."""
        reached = {id(one) for one in self.trace.parameters}
        self.trace.others = [
            tensor for tensor, _ in self._real.values() if id(tensor) not in reached | self.inputs
        ]
        return self.trace
