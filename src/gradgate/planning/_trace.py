"""Runs a forward and backward pass, traces its memory, and undoes its changes."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import flop_registry

from gradgate.autograd_graph import Graph
from gradgate.errors import OptionError
from gradgate.forward_state import random_states
from gradgate.planning._memory import ResidentMemory, in_one_line, resident_memory
from gradgate.planning._peak_memory import peak_memory, tensors_of
from gradgate.planning._reachable_state import ReachableState
from gradgate.pytree import mapped_tensors, tensors_in
from gradgate.torch_compat import as_torch_itself, compiler_is_loaded, fake_tensors, op_schema

# The mean or sum that these return keeps the memory of the unreduced values. Its fake does not.
_REDUCED_IN_PLACE = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
# Fake tensors do not show how much a library saves for the backward pass of these.
_UNKNOWN = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
_DEVICE = torch.ops.prim.device.default


class FakePassError(Exception):
    """Fake tensors cannot run a loss function. The message says why."""


class FakeTensors:
    """Makes fake tensors, which have shapes but no values, from real ones.

    Keeps them alive, because torch only refers to them weakly, and a second fake of a tensor would count as new
    memory.
    """

    def __init__(self) -> None:
        as_torch_itself.require()  # its replacement would compute on fake tensors
        self.kind, mode = fake_tensors()
        self.mode = mode(allow_non_fake_inputs=True)
        self.created: list[weakref.ref[Tensor]] = []
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the fake of a real tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self.mode.from_tensor(tensor)
        return self._known[id(tensor)][1]

    def of_input(self, tensor: Tensor) -> Tensor:
        """Return a fake for a tensor of a micro-batch, without keeping it. 0-dimensional tensors stay real."""
        if not tensor.dim():
            return tensor
        fake: Tensor = tensor if isinstance(tensor, self.kind) else self.mode.from_tensor(tensor)
        self.created.append(weakref.ref(fake))
        return fake

    def leaked(self) -> list[Tensor]:
        """Return the fakes that are still referenced after their passes."""
        if self._alive():
            gc.collect()  # graphs of Python autograd functions can be in reference cycles
        alive = self._alive()
        self.created = [weakref.ref(tensor) for tensor in alive]
        return alive

    def _alive(self) -> list[Tensor]:
        kept = {id(fake) for _, fake in self._known.values()}
        return [tensor for ref in self.created if (tensor := ref()) is not None and id(tensor) not in kept]


@dataclass
class PassTrace:
    """The memory of one forward and backward pass.

    Attributes:
        samples: the number of samples in the micro-batch.
        length: their length; 0 if they have none.
        sizes: bytes of each storage that was created (positive) or freed (negative), in order.
        has_batch_norm: whether a batch norm mixes the samples of a micro-batch.
        operations: the number of operations.
        flops: floating-point operations of each matrix product and convolution.
        resident: the memory that stays allocated between passes.
    """

    FLOPS_PER_BYTE: ClassVar[int] = 8  # that take as long as writing and reading a byte

    samples: int = 0
    length: int = 0
    sizes: list[int] = field(default_factory=list)
    has_batch_norm: bool = False
    operations: int = 0
    flops: list[int] = field(default_factory=list)
    resident: ResidentMemory = field(default_factory=ResidentMemory)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive at once."""
        return max(itertools.accumulate(self.sizes), default=0)

    @property
    def start_flops(self) -> float:
        """The floating-point operations that take as long as starting an operation."""
        return 4e5 if self.resident.device.type == "cpu" else 1e8

    @property
    def work(self) -> float:
        """The cost of the pass in floating-point operations, including the cost of writing and reading memory."""
        return sum(self.flops) + self.FLOPS_PER_BYTE * sum(size for size in self.sizes if size > 0)


class PassTracer(peak_memory):
    """Traces a pass on fake tensors, or on real ones if ``fakes`` is None."""

    is_trial = True  # the checker ignores what runs in this mode

    def __init__(self, fakes: FakeTensors | None, state: ReachableState) -> None:
        super().__init__()
        self._fakes, self._state = fakes, state
        self.trace = PassTrace()
        self.inputs: set[int] = set()
        self._existing: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor, and its fake
        self._overwritten: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor, and a copy from before
        self._existing_storages: set[int] = set()
        self._devices: dict[int, torch.device] = {}  # by storage
        self._events: list[tuple[int, torch.device]] = []  # bytes created or freed, device
        self._ended = 0  # the number of events when the pass ended
        self._created_on = torch.device("cpu")  # the device of the last new tensor
        self._least_items = 0  # the current operation's result has memory for at least this many entries

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and self._is_fake(args[0]):  # a shortcut for half of all calls
            return args[0].device
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        schema = op_schema(func)
        name = schema.name.removeprefix("aten::")
        self.trace.operations += 1
        if self._fakes is not None and name.startswith(_UNKNOWN):
            raise FakePassError(f"fake tensors do not show what {name} saves for the backward pass")
        is_batch_norm = "batch_norm" in name and "backward" not in name
        if is_batch_norm:  # its schema does not say that it writes its statistics
            self.trace.has_batch_norm |= any(argument is True for argument in args)
            self._copy_before_write(args[3:5])
        elif schema.is_mutable:
            given = dict(zip((each.name for each in schema.arguments), args, strict=False))
            given |= kwargs or {}  # an `out` is passed by name
            self._copy_before_write(
                given.get(each.name)
                for each in schema.arguments
                if each.alias_info is not None and each.alias_info.is_write
            )
        if self._fakes is not None:
            # If it is given only fakes, the mode finds earlier operations in its cache, and is twice as fast.
            args = tuple(self._as_fakes(argument) for argument in args)
        keeps_unreduced = self._fakes is not None and name in _REDUCED_IN_PLACE
        self._least_items = (
            math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)) if keeps_unreduced else 0
        )
        result = super().__torch_dispatch__(func, types, args, kwargs)
        flops = flop_registry.get(func.overloadpacket)
        if flops is not None:
            self.trace.flops.append(flops(*args, **(kwargs or {}), out_val=result))
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._ended = len(self._events)  # what is freed later depends on when the garbage collector runs

    def _is_fake(self, value: Any) -> bool:
        return self._fakes is not None and type(value) is self._fakes.kind

    def note_existing(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or self._is_fake(tensor):
            super().note_existing(tensor)
            return
        if id(tensor) not in self._existing:
            key = self._key(tensor.untyped_storage())
            if self._fakes is None and key in self._known and key not in self._existing_storages:
                return  # created in this pass
            self._existing_storages.add(key)
            self._existing[id(tensor)] = tensor, tensor if self._fakes is None else self._fakes.of(tensor)
        super().note_existing(self._existing[id(tensor)][1])

    def note_created(self, tensor: Tensor) -> None:
        self._created_on = tensor.device
        if self._fakes is None or tensor.layout != torch.strided:
            super().note_created(tensor)
            return
        self._fakes.created.append(weakref.ref(tensor))
        storage = tensor.untyped_storage()
        # Some fakes are views although the real results are not.
        items = max(tensor.numel(), self._least_items)
        self._note_storage(storage, max(storage.nbytes(), items * tensor.element_size()))

    def _as_fakes(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            if self._is_fake(argument) or argument.layout != torch.strided:
                return argument
            self.note_existing(argument)
            return self._existing[id(argument)][1]
        return [self._as_fakes(item) for item in argument] if type(argument) is list else argument

    def changed(self, size: int, key: int) -> None:
        super().changed(size, key)
        if size > 0:
            self._devices[key] = self._created_on
        self._events.append((size, self._devices[key] if size > 0 else self._devices.pop(key)))

    def _copy_before_write(self, written: Iterable[Any]) -> None:
        """Copy tensors that an operation is about to overwrite, if they existed before the pass.

        Fake passes need this too: an operation on the fake of a single number writes into the real tensor.
        """
        for tensor in tensors_of(written):
            if self._is_fake(tensor) or id(tensor) in self._overwritten:
                continue
            self.note_existing(tensor)
            if self._key(tensor.untyped_storage()) in self._existing_storages:
                with as_torch_itself():
                    self._overwritten[id(tensor)] = tensor, tensor.detach().clone()

    def restore(self, kind: type[BaseException] | None, *_: object) -> None:
        """Restore the values of tensors and the objects that the pass changed; called on leaving the pass."""
        with torch.no_grad():
            for tensor, before in self._overwritten.values():
                if tensor.untyped_storage().nbytes():  # `fully_shard` frees the memory of gathered parameters
                    tensor.copy_(before)
        self._state.restore(raised=kind is not None)

    def enter_module(self, module: nn.Module, _: Any) -> None:
        """Record the state of a module before it runs; a hook."""
        with as_torch_itself():  # otherwise the module's tensors would look fake
            self._state.note(module)
        if self._fakes is not None and any(map(is_lazy, module.parameters())):
            raise FakePassError("a lazy module gets its shapes from its first real batch")
        if isinstance(module, nn.parallel.DistributedDataParallel):  # no communication
            module.require_backward_grad_sync = module.require_forward_param_sync = False

    def finish(self, parameters: list[Tensor]) -> PassTrace:
        """Return the trace, given the parameters that gradients reached.

        If the pass runs on an accelerator, the budget is its memory, and what the CPU holds does not count.
        """
        devices = [*(parameter.device for parameter in parameters), *(device for _, device in self._events)]
        device = next((each for each in devices if each.type not in ("cpu", "meta")), devices[0])
        events = self._events[: self._ended]
        self.trace.sizes = [size for size, there in events if there.type == device.type]
        not_resident = {id(tensor) for tensor in parameters} | self.inputs
        others = [tensor for tensor, _ in self._existing.values() if id(tensor) not in not_resident]
        self.trace.resident = resident_memory(parameters, others, device)
        return self.trace


def trace_pass(
    loss_fn: Callable[[Any], Any],
    make_batch: Callable[[], Any],
    state: ReachableState,
    *,
    fakes: FakeTensors | None = None,
    copies: bool = False,
) -> PassTrace:
    """Trace a pass on fake tensors, which computes and allocates nothing, or on real ones if ``fakes`` is None.

    ``state`` restores the objects that the pass changes. With ``copies``, the micro-batch is a copy of samples, so
    its memory counts.

    Raises:
        OptionError: the loss function returns no scalar with a graph.
        FakePassError: the loss function cannot run on fake tensors.
    """
    if fakes is None:
        return _traced(loss_fn, make_batch(), PassTracer(None, state), None, copies=copies)
    try:
        with fakes.mode:
            batch = mapped_tensors(make_batch(), fakes.of_input)
        return _traced(loss_fn, batch, PassTracer(fakes, state), fakes.mode, copies=copies)
    except (FakePassError, OptionError):
        raise
    except Exception as error:  # noqa: BLE001 - a loss function may raise anything
        reason = f"fake tensors cannot run loss_fn: {in_one_line(error)}"
    raise FakePassError(reason)  # outside the handler, which keeps the frames that hold fakes alive


def _traced(
    loss_fn: Callable[[Any], Any], batch: Any, tracer: PassTracer, fake_mode: Any, *, copies: bool
) -> PassTrace:
    for tensor in tensors_in(batch):
        tracer.inputs.add(id(tensor))
        if copies:
            tracer.note_created(tensor)
        else:
            tracer.note_existing(tensor)
    with ExitStack() as undo:
        for restore in random_states():
            undo.callback(restore)
        # An autocast block around this would keep copies of parameters.
        undo.callback(torch.clear_autocast_cache)
        undo.push(tracer.restore)
        with ExitStack() as modes:
            if compiler_is_loaded():
                modes.enter_context(torch.compiler.set_stance("force_eager"))
            if gc.isenabled():  # otherwise each pass would free reference cycles at a different time
                modes.callback(gc.enable)
                gc.disable()
            modes.enter_context(torch.enable_grad())
            if fake_mode is not None:
                modes.enter_context(fake_mode)
            modes.enter_context(tracer)
            modes.callback(register_module_forward_pre_hook(tracer.enter_module).remove)
            outcome = loss_fn(batch)
            loss = outcome[0] if isinstance(outcome, tuple) else outcome
            del outcome
            _check_loss(loss)
            leaves = Graph(loss).leaf_nodes
            for node in leaves:
                # Drops the gradient before it reaches `.grad`. The hook is removed because other graphs may share
                # the node.
                modes.callback(node.register_prehook(lambda _: (None,)).remove)
            parameters = list(leaves.values())
            del leaves
            loss.backward()
            del loss
        return tracer.finish(parameters)


def _check_loss(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.grad_fn is not None:
        return
    what = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        what = f"a tensor of shape {list(loss.shape)}{', without a graph' if loss.grad_fn is None else ''}"
    raise OptionError(
        f"plan: loss_fn returned {what}. It must return the loss, a scalar computed from parameters, or the loss "
        "and its count: return loss, y.numel()."
    )
