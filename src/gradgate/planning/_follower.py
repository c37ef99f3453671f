"""Follow what a pass holds in memory: each storage that comes and goes, who made it, what was there before."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import flop_registry

from gradgate.planning._peak import peak_memory, tensors_of
from gradgate.planning._standing import Standing, standing
from gradgate.planning._surroundings import Surroundings
from gradgate.torch_compat import fake_tensors, op_packet, op_schema, without_dispatch_modes

# What these keep for the backward pass is decided by a library, and their fakes know nothing of it.
# A mean or sum by these keeps the memory that it had before it was reduced; their fakes do not.
_REDUCED_IN_PLACE = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
_DEVICE = torch.ops.prim.device.default
_UNKNOWN = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")


class FakePassError(Exception):
    """Fake tensors cannot run this; the reason is the text."""


class TooLongError(Exception):
    """A pass of many samples takes too many operations to be followed."""


@dataclass
class Trace:
    """The memory of one forward and backward pass.

    Attributes:
        sizes: bytes of each storage that came (positive) or went (negative), in order.
        makers: of each, the module that made it; "" outside of modules.
        mixes: operations that mix the samples of a micro-batch.
        operations: how many ran.
        flops: of each product and convolution, the floating-point operations.
        standing: what was there beside the pass.
    """

    sizes: list[int] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    mixes: set[str] = field(default_factory=set)
    operations: int = 0
    flops: list[int] = field(default_factory=list)
    standing: Standing = field(default_factory=Standing)

    @property
    def peak_bytes(self) -> int:
        """The most that was live at once."""
        return max(itertools.accumulate(self.sizes), default=0)


class Fakes:
    """Fake tensors, which have shapes and no values, and the real ones that they stand for.

    The mode holds its fakes weakly. One that is made anew for every operation would count as a new storage.
    """

    def __init__(self) -> None:
        self.kind, mode = fake_tensors()
        self.mode = mode(allow_non_fake_inputs=True)
        self.made: list[weakref.ref[Tensor]] = []
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the fake of a real tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self.mode.from_tensor(tensor)
        return self._known[id(tensor)][1]

    def left(self) -> list[Tensor]:
        """Return the fakes that somebody holds although their passes are over."""
        if self._alive():
            gc.collect()  # graphs of Python autograd functions can stand in reference cycles
        left = self._alive()
        self.made = [weakref.ref(tensor) for tensor in left]
        return left

    def _alive(self) -> list[Tensor]:
        ours = {id(fake) for _, fake in self._known.values()}
        return [tensor for ref in self.made if (tensor := ref()) is not None and id(tensor) not in ours]


class Follower(peak_memory):
    """Notes each storage that comes and goes, who made it, and what was there before."""

    is_trial = True  # for who watches the training: what runs in here is none

    def __init__(self, fakes: Fakes | None, surroundings: Surroundings) -> None:
        super().__init__()
        self._surroundings = surroundings
        self._fake_tensor = None if fakes is None else fakes.kind
        self.trace = Trace()
        self.inputs: set[int] = set()
        self.most_operations: float = math.inf
        self._fakes = fakes
        self._real: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: a tensor, and its fake
        self._before: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # what a real pass has written: a tensor, and its copy
        self._there: set[int] = set()  # storages that were there before
        self._makers: dict[int, str] = {}  # of storages
        self._least = 0  # items that the result of an operation has memory for
        self._modules: list[str] = []
        self._names: dict[int, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and type(args[0]) is self._fake_tensor:  # asked as often as operations run
            return args[0].device
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        schema = op_schema(func)
        name = schema.name.removeprefix("aten::")
        self.trace.operations += 1
        if self.trace.operations > self.most_operations:
            raise TooLongError
        if self._fakes is not None and name.startswith(_UNKNOWN):
            raise FakePassError(f"what {name} keeps for the backward pass is decided by a library")
        normalises = "batch_norm" in name and "backward" not in name
        if normalises and any(argument is True for argument in args):
            self.trace.mixes.add("batch norm")
        if normalises:  # it writes its statistics, and its schema does not say so
            self._keep(args[3:5])
        elif schema.is_mutable:
            self._keep(
                value
                for argument, value in zip(schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        if self._fakes is not None:
            # Given fakes only, the mode finds in its cache what it has seen before, and is twice as quick.
            args = tuple(self._as_fakes(one) for one in args)
        reduced = self._fakes is not None and name in _REDUCED_IN_PLACE
        self._least = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)) if reduced else 0
        result = super().__torch_dispatch__(func, types, args, kwargs)
        flops = flop_registry.get(op_packet(func))
        if flops is not None:
            self.trace.flops.append(flops(*args, **(kwargs or {}), out_val=result))
        return result

    def existed(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or type(tensor) is self._fake_tensor:
            super().existed(tensor)
            return
        if id(tensor) not in self._real:
            key = self._key(tensor.untyped_storage())
            if self._fakes is None and key in self._known and key not in self._there:
                return  # made in this pass
            self._there.add(key)
            self._real[id(tensor)] = tensor, tensor if self._fakes is None else self._fakes.of(tensor)
        super().existed(self._real[id(tensor)][1])

    def made(self, tensor: Tensor) -> None:
        if self._fakes is None or tensor.layout != torch.strided:
            super().made(tensor)
            return
        self._fakes.made.append(weakref.ref(tensor))
        storage = tensor.untyped_storage()
        # Some fakes are views where the real result is no view.
        self._know(storage, max(storage.nbytes(), max(tensor.numel(), self._least) * tensor.element_size()))

    def _as_fakes(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            if type(argument) is self._fake_tensor or argument.layout != torch.strided:
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
            if type(tensor) is self._fake_tensor or id(tensor) in self._before:
                continue
            self.existed(tensor)
            if self._key(tensor.untyped_storage()) in self._there:
                with without_dispatch_modes():
                    self._before[id(tensor)] = tensor, tensor.detach().clone()

    def restore(self) -> None:
        """Undo what the pass changed: what it wrote into tensors that were there before, then objects."""
        with torch.no_grad():
            for tensor, copied in self._before.values():
                tensor.copy_(copied)
        self._surroundings.restore()

    @contextmanager
    def naming_modules(self) -> Iterator[None]:
        """Know within which module an operation runs."""

        def enter(module: nn.Module, _: Any) -> None:
            if id(module) not in self._names:
                with without_dispatch_modes():  # under which its tensors would look fake
                    self._surroundings.note(module)
                if self._fakes is not None and any(map(is_lazy, module.parameters())):
                    raise FakePassError("a lazy module gets its shapes from its first real batch")
                self._names.update((id(inner), name) for name, inner in module.named_modules())
            self._modules.append(self._names[id(module)])
            if isinstance(module, nn.parallel.DistributedDataParallel):  # nothing goes over to other ranks
                module.require_backward_grad_sync = module.require_forward_param_sync = False

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._modules.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finished(self, parameters: list[Tensor]) -> Trace:
        """Return what was followed, given the parameters that gradients reached."""
        reached = {id(tensor) for tensor in parameters}
        others = [tensor for tensor, _ in self._real.values() if id(tensor) not in reached | self.inputs]
        self.trace.standing = standing(parameters, others)
        return self.trace
