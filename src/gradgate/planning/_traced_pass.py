"""Runs a forward and backward pass, on fake or real tensors, records its memory, and undoes its changes."""

from __future__ import annotations

import functools
import gc
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import flop_registry

from gradgate.autograd_graph import Graph
from gradgate.errors import OptionError
from gradgate.planning._fake_tensors import FakePassError, FakeTensors
from gradgate.planning._pass_state import PassState
from gradgate.planning._peak_memory import peak_memory, tensors_of
from gradgate.planning._resident_memory import ResidentMemory, in_one_line, resident_memory
from gradgate.pytree import mapped_tensors, tensors_in
from gradgate.torch_compat import as_torch_itself, compiler_is_loaded, fake_errors_unlogged, op_schema

# The mean or sum that these return keeps the memory of the unreduced values. Its fake does not.
_REDUCED_IN_PLACE = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
# Fake tensors do not show how much a library saves for the backward pass of these.
_UNKNOWN = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
_DEVICE = torch.ops.prim.device.default
_FLOPS_PER_BYTE = 8  # that take as long as writing and reading a byte


@dataclass(frozen=True)
class TracedPass:
    """The memory and work of one forward and backward pass.

    Attributes:
        samples: the number of samples in the micro-batch.
        length: their length; 0 if they have none.
        events: the bytes of each storage that was created (positive) or freed (negative), and the module that
            created it; "" outside of modules.
        ends: the number of events before each local maximum of live memory: something was created, and is freed.
        work: the cost in floating-point operations, including the cost of writing and reading memory.
        operations: the number of operations.
        has_batch_norm: whether a batch norm mixes the samples of a micro-batch.
        resident: the memory that stays allocated between passes.
    """

    samples: int
    length: int
    events: list[tuple[int, str]]
    ends: list[int]
    work: float
    operations: int
    has_batch_norm: bool
    resident: ResidentMemory

    @functools.cached_property
    def highs(self) -> list[int]:
        """The live bytes at each local maximum."""
        live = [0, *itertools.accumulate(size for size, _ in self.events)]
        return [live[end] for end in self.ends]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive at once."""
        return max(self.highs)

    def by_module(self, high: int) -> Counter[str]:
        """Return the live bytes at a local maximum, by the module that created them."""
        live: Counter[str] = Counter()
        for size, module in self.events[: self.ends[high]]:
            live[module] += size
        return live

    @property
    def start_flops(self) -> float:
        """The floating-point operations that take as long as starting an operation."""
        return 4e5 if self.resident.device.type == "cpu" else 1e8


def trace_pass(
    loss_fn: Callable[[Any], Any],
    make_batch: Callable[[], Any],
    state: PassState,
    fakes: FakeTensors | None,
    *,
    samples: int,
    length: int,
    copies: bool,
) -> TracedPass:
    """Trace a pass on fake tensors, which computes and allocates nothing, or on real ones if ``fakes`` is None.

    ``state`` restores the objects that the pass changes. With ``copies``, the micro-batch is a copy of samples, so
    its memory counts.

    Raises:
        OptionError: the loss function returns no scalar with a graph.
        FakePassError: the loss function cannot run on fake tensors.
    """
    try:
        tracer = _Tracer(fakes, state)
        if fakes is None:
            batch = make_batch()
        else:
            with fakes.mode:
                batch = mapped_tensors(make_batch(), fakes.of_input)
        tracer.note_inputs(batch, copies=copies)
        return _run(loss_fn, batch, tracer, samples, length)
    except (FakePassError, OptionError):
        raise
    except Exception as error:
        if fakes is None:
            raise
        reason = f"fake tensors cannot run loss_fn: {in_one_line(error)}"
    raise FakePassError(reason)  # outside the handler, which keeps the frames that hold fakes alive


def _run(loss_fn: Callable[[Any], Any], batch: Any, tracer: _Tracer, samples: int, length: int) -> TracedPass:
    with ExitStack() as undo:
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
            if tracer.fakes is not None:
                modes.enter_context(fake_errors_unlogged())
                modes.enter_context(tracer.fakes.mode)
            modes.enter_context(tracer)
            modes.enter_context(tracer.following_modules())
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
        return tracer.traced(parameters, samples, length)


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


class _Tracer(peak_memory):
    """Traces a pass on fake tensors, or on real ones if ``fakes`` is None."""

    is_trial = True  # the checker ignores what runs in this mode

    def __init__(self, fakes: FakeTensors | None, state: PassState) -> None:
        super().__init__()
        self.fakes, self._state = fakes, state
        self._inputs: set[int] = set()
        self._existing: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor, and its fake
        self._overwritten: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor, and a copy from before
        self._existing_storages: set[int] = set()
        # By storage: the module that created it, and its device.
        self._creators: dict[int, tuple[str, torch.device]] = {}
        self._events: list[tuple[int, str, torch.device]] = []  # bytes created or freed, module, device
        self._ended = 0  # the number of events when the pass ended
        self._created_on = torch.device("cpu")  # the device of the last new tensor
        self._least_items = 0  # the current operation's result has memory for at least this many entries
        self._module_stack: list[str] = []
        self._module_names: dict[int, str] = {}
        self._operations, self._flops, self._has_batch_norm = 0, 0.0, False

    def note_inputs(self, batch: Any, *, copies: bool) -> None:
        """Register the tensors of a micro-batch; count them if they are copies."""
        for tensor in tensors_in(batch):
            self._inputs.add(id(tensor))
            if copies:
                self.note_created(tensor)
            else:
                self.note_existing(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and self._is_fake(args[0]):  # a shortcut for half of all calls
            return args[0].device
        if func.namespace == "prim":
            return func(*args, **kwargs)
        schema = op_schema(func)
        name = schema.name.removeprefix("aten::")
        self._operations += 1
        self._least_items = 0
        if "batch_norm" in name and "backward" not in name:  # its schema hides that it writes its statistics
            self._has_batch_norm |= any(argument is True for argument in args)
            self._copy_before_write(args[3:5])
        elif schema.is_mutable:
            given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
            self._copy_before_write(
                given.get(argument.name)
                for argument in schema.arguments
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        if self.fakes is not None:
            if name.startswith(_UNKNOWN):
                raise FakePassError(f"fake tensors do not show what {name} saves for the backward pass")
            if name in _REDUCED_IN_PLACE:
                self._least_items = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape))
            # If it is given only fakes, the mode finds earlier operations in its cache, and is twice as fast.
            args = tuple(self._as_fakes(argument) for argument in args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        flops = flop_registry.get(func.overloadpacket)
        if flops is not None:
            self._flops += flops(*args, **kwargs, out_val=result)
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._ended = len(self._events)  # what is freed later depends on when the garbage collector runs

    def _is_fake(self, value: Any) -> bool:
        return self.fakes is not None and type(value) is self.fakes.kind

    def note_existing(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or self._is_fake(tensor):
            super().note_existing(tensor)
            return
        if id(tensor) not in self._existing:
            key = self._key(tensor.untyped_storage())
            if self.fakes is None and key in self._known and key not in self._existing_storages:
                return  # created in this pass
            self._existing_storages.add(key)
            self._existing[id(tensor)] = tensor, tensor if self.fakes is None else self.fakes.of(tensor)
        super().note_existing(self._existing[id(tensor)][1])

    def note_created(self, tensor: Tensor) -> None:
        self._created_on = tensor.device
        if self.fakes is None or tensor.layout != torch.strided:
            super().note_created(tensor)
            return
        self.fakes.note_created(tensor)
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
        if size > 0:
            self._creators[key] = self._module_stack[-1] if self._module_stack else "", self._created_on
        self._events.append((size, *self._creators[key]))

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

    @contextmanager
    def following_modules(self) -> Iterator[None]:
        """Record the module in which each operation of the block runs."""

        def enter(module: nn.Module, _: Any) -> None:
            if id(module) not in self._module_names:
                with as_torch_itself():  # otherwise the module's tensors would look fake
                    self._state.add(module)
                if self.fakes is not None and any(map(is_lazy, module.parameters())):
                    raise FakePassError("a lazy module gets its shapes from its first real batch")
                self._module_names.update((id(inner), name) for name, inner in module.named_modules())
            self._module_stack.append(self._module_names[id(module)])
            if isinstance(module, nn.parallel.DistributedDataParallel):  # no communication
                module.require_backward_grad_sync = module.require_forward_param_sync = False

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._module_stack.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def traced(self, parameters: list[Tensor], samples: int, length: int) -> TracedPass:
        """Return what was traced, given the parameters that gradients reached.

        If the pass runs on an accelerator, the budget is its memory, and what the CPU holds does not count.
        """
        devices = [*(parameter.device for parameter in parameters), *(device for *_, device in self._events)]
        device = next((device for device in devices if device.type not in ("cpu", "meta")), devices[0])
        events = [
            (size, module) for size, module, where in self._events[: self._ended] if where.type == device.type
        ]
        sizes = [size for size, _ in events]
        created = [0, *sizes]
        ends = [end for end, size in enumerate([*sizes, -1]) if size < 0 <= created[end]]
        not_resident = {id(tensor) for tensor in parameters} | self._inputs
        others = [tensor for tensor, _ in self._existing.values() if id(tensor) not in not_resident]
        return TracedPass(
            samples,
            length,
            events,
            ends,
            self._flops + _FLOPS_PER_BYTE * sum(size for size in sizes if size > 0),
            self._operations,
            self._has_batch_norm,
            resident_memory(parameters, others, device),
        )
