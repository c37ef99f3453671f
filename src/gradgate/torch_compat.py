"""Every private name of torch and of CPython that gradgate uses. No other file may spell one.

A private name may move in any release. Each :class:`Private` below says what it is for, and what is used instead
where it is gone or works otherwise. It is tried out once, when it is first used, and never at import. What has
another way to the same result takes that way; what has none raises a clear error. What the checker can no longer
see is in :func:`unseen`, and stands in every report with the rules that need it.

Names that begin with an underscore but are documented are not private: what a node of a graph has saved
(``node._saved_self``: https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors), ``sys._getframe``,
``sys._current_frames``, ``os._exit``, and the methods of named tuples.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import unwrap
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

from gradgate.errors import UpdateError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class Private(Generic[P, R]):
    """A function made of private names.

    Attributes:
        names: the names, for messages.
        cannot: what gradgate cannot do without them, to follow "gradgate cannot".
        find: returns the function; raises where a name is gone.
        instead: the function that is used then; None where nothing else gives the same result: a call is refused.
        works: tries it out; raises or returns something false where it does not do what it did.
        rules: of the checker, which then miss mistakes.
    """

    names: str
    cannot: str
    find: Callable[[], Callable[P, R]]
    instead: Callable[P, R] | None = None
    works: Callable[[Callable[P, R]], object] = lambda use: True
    rules: tuple[str, ...] = ()

    @cached_property
    def use(self) -> Callable[P, R]:
        """The function, or what is used instead of it."""
        try:
            found = self.find()
            return found if self.works(found) else self.otherwise
        except Exception:  # noqa: BLE001  (whatever a name that has changed raises, it is of no use)
            return self.otherwise

    @cached_property
    def otherwise(self) -> Callable[P, R]:
        """What is used where it is lost."""
        return self._refuse if self.instead is None else self.instead

    @property
    def lost(self) -> bool:
        """Say whether it does not work with this version of torch and Python."""
        return self.use is self.otherwise

    def require(self) -> None:
        """Raise UpdateError where it is lost."""
        if self.lost:
            self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UpdateError(
            f"{self.loss}. Use versions that gradgate is tested with: docs/limits.md names them."
        )

    @property
    def loss(self) -> str:
        """What is lost, and why."""
        versions = f"torch {_torch().__version__} and Python {sys.version_info[0]}.{sys.version_info[1]}"
        return f"gradgate cannot {self.cannot} with {versions} ({self.names} is gone or works otherwise)"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.use(*args, **kwargs)


def unseen() -> tuple[str, ...]:
    """Return what the checker cannot see with this version of torch, in sentences that name the rules."""
    entries = [one for one in globals().values() if isinstance(one, Private) and one.rules]
    return tuple(f"{one.loss}: {', '.join(one.rules)} may miss mistakes." for one in entries if one.lost)


def _torch() -> Any:
    import torch  # the command line looks at a script before it imports torch

    return torch


# ---- Graphs and tensors


def _a_node() -> Any:
    torch = _torch()
    with torch.enable_grad():
        return torch.zeros((), requires_grad=True).view_as(torch.zeros(())).grad_fn


_asked = itertools.count()

node_number: Private[[Any], int] = Private(
    "torch.autograd.graph.Node._sequence_nr",
    "tell in which order the nodes of a graph were made",
    find=lambda: lambda node: node._sequence_nr(),
    # A number of its own for each node, in the order in which they are looked at.
    instead=lambda node: node.metadata.setdefault("gradgate number", next(_asked)),
    works=lambda number: 0 <= number(_a_node()) < number(_a_node()),
    rules=("GG203", "GG303", "GG305", "GG404", "GG405", "GG601"),
)

tensor_version: Private[[Any], int] = Private(
    "torch.Tensor._version",
    "see that a tensor was written in place",
    find=lambda: lambda tensor: tensor._version,
    instead=lambda tensor: 0,
    works=lambda version: version(_torch().zeros(1).add_(1)) == 1,
    rules=("GG201", "GG202", "GG302", "GG505"),
)


def stored_stack(node: Any) -> Any:
    """Return what anomaly mode has stored in a node: what :data:`stack_formatter` returned when it was made."""
    return node.metadata.get("traceback_")


def _is_asked(place: Callable[[], tuple[ModuleType, str] | None]) -> bool:
    """Say whether anomaly mode stores in a node what the function at this place returns."""
    torch = _torch()
    module, name = place() or (sys, "")
    original = getattr(module, name)
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    mine = ["mine"]
    try:
        setattr(module, name, lambda: mine)
        torch.set_anomaly_enabled(True, False)
        return stored_stack(_a_node()) is mine
    finally:
        torch.set_anomaly_enabled(*before)
        setattr(module, name, original)


def _stack_formatter() -> Callable[[], tuple[ModuleType, str] | None]:
    import torch.fx.traceback

    return lambda: (torch.fx.traceback, "format_stack")


# Where the function stands that anomaly mode asks for the stack when a node is made, so that a quicker one can take
# its place: torch/csrc/autograd/python_anomaly_mode.cpp.
stack_formatter: Private[[], tuple[ModuleType, str] | None] = Private(
    "torch.fx.traceback.format_stack",
    "name the lines that made the parts of a loss",
    find=_stack_formatter,
    instead=lambda: None,
    works=_is_asked,
    rules=("GG102", "GG103", "GG104", "GG105", "GG106", "GG203", "GG402", "GG403", "GG404", "GG405", "GG601"),
)


def _knows_its_nodes(_: Any) -> bool:
    """Say whether nodes have the names, and keep the values, that a loss is read by."""
    torch = _torch()
    nn = torch.nn.functional
    with torch.enable_grad():
        x, ones = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
        samples: dict[str, tuple[Any, ...]] = {
            "MeanBackward0": (x.mean(), "self_sym_sizes", "self_sym_numel"),
            "SumBackward0": (x.sum(), "self_sym_sizes"),
            "MulBackward0": (x * ones, "other"),
            "DivBackward0": (x / ones, "other"),
            "PowBackward0": (x**2, "exponent"),
            "LogSoftmaxBackward0": (x.log_softmax(1), "result", "dim"),
            "MseLossBackward0": (nn.mse_loss(x, ones), "self", "reduction"),
            "NllLossBackward0": (
                nn.nll_loss(x, torch.tensor([0, 1])),
                *("target", "ignore_index", "weight", "total_weight", "reduction"),
            ),
        }
    return all(
        result.grad_fn.name() == name and all(hasattr(result.grad_fn, f"_saved_{one}") for one in saved)
        for name, (result, *saved) in samples.items()
    )


reads_losses: Private[[], bool] = Private(
    "a node's name or a value that it saves",
    "read what a loss is made of",
    find=lambda: lambda: True,
    instead=lambda: False,
    works=_knows_its_nodes,
    rules=("GG101", "GG102", "GG103", "GG104", "GG105", "GG106", "GG203", "GG303", "GG402"),
)

# ---- Modes


def _as_torch_itself() -> Callable[[], AbstractContextManager[None]]:
    from contextlib import contextmanager

    torch = _torch()
    from torch.utils._python_dispatch import _disable_current_modes

    dispatching, overriding = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack

    @contextmanager
    def without_modes() -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            yield

    without_classes = torch._C.DisableTorchFunctionSubclass
    return lambda: without_modes() if dispatching() or overriding() else without_classes()


def _enters(use: Callable[[], AbstractContextManager[None]]) -> bool:
    with use():
        return True


as_torch_itself: Private[[], AbstractContextManager[None]] = Private(
    "torch._C.DisableTorchFunctionSubclass or torch.utils._python_dispatch._disable_current_modes",
    "keep what it computes from modes and tensor classes that the script brings along",
    find=_as_torch_itself,
    instead=nullcontext,
    works=_enters,
    rules=("every rule",),
)


def _fake_tensors_on() -> Callable[[], bool]:
    mode, key = _torch()._C._get_dispatch_mode, _torch()._C._TorchDispatchModeKey.FAKE
    return lambda: mode(key) is not None


fake_tensors_on: Private[[], bool] = Private(
    "torch._C._get_dispatch_mode",
    "tell a run on fake tensors from a training",
    find=_fake_tensors_on,
    instead=lambda: False,
    works=lambda on: isinstance(on(), bool),
    rules=("every rule",),
)


def _dispatch_modes() -> Callable[[], Iterable[Any]]:
    count, at = _torch()._C._len_torch_dispatch_stack, _torch()._C._get_dispatch_stack_at
    return lambda: map(at, range(count()))


dispatch_modes: Private[[], Iterable[Any]] = Private(
    "torch._C._get_dispatch_stack_at",
    "tell the trial passes of gradgate.plan from a training",
    find=_dispatch_modes,
    instead=tuple,
    works=lambda modes: not list(modes()) or True,
    rules=("every rule",),
)


def _compiled() -> bool:
    """Say whether torch.compile has compiled something; None stands among the backends from the start."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    try:
        return any(one is not None for one in dynamo.eval_frame.cached_backends.values())
    except AttributeError:  # it was not there yet when this was tried out
        anything_compiled.use = anything_compiled.otherwise
        return anything_compiled.use()


anything_compiled: Private[[], bool] = Private(
    "torch._dynamo.eval_frame.cached_backends",
    "tell whether the script compiles something",
    find=lambda: _compiled,
    instead=lambda: "torch._dynamo" in sys.modules,  # looks at less, rather than make torch compile anew
    works=lambda compiled: isinstance(compiled(), bool),
    rules=("GG401", "GG402"),
)

# ---- Learning-rate schedulers that run others


def _keeps(*names: str) -> bool:
    from torch.optim.lr_scheduler import SequentialLR

    return set(names) <= {*unwrap(SequentialLR.__init__).__code__.co_names}  # it may be watched already


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


inner_schedulers: Private[[Any], list[Any]] = Private(
    "torch.optim.lr_scheduler.SequentialLR._schedulers",
    "tell when a scheduler made of others has run its course",
    find=lambda: lambda scheduler: _list(getattr(scheduler, "_schedulers", None)),
    instead=lambda scheduler: [],
    works=lambda _: _keeps("_schedulers"),
    rules=("GG301",),
)

inner_milestones: Private[[Any], list[int]] = Private(
    "torch.optim.lr_scheduler.SequentialLR._milestones",
    "tell when a scheduler made of others has run its course",
    find=lambda: lambda scheduler: _list(getattr(scheduler, "_milestones", None)),
    instead=lambda scheduler: [],
    works=lambda _: _keeps("_milestones"),
    rules=("GG301",),
)

# ---- Backward passes and arithmetic: each has a public way to the same result, which takes longer


def _engine() -> Callable[..., Any]:
    run: Callable[..., Any] = _torch().autograd.graph._engine_run_backward
    return run


# What torch.autograd.backward calls once it has checked its arguments.
run_backward: Private[..., Any] = Private(
    "torch.autograd.graph._engine_run_backward",
    "start a backward pass without checking its arguments anew",
    find=_engine,
    instead=lambda losses, seeds, retain, create, inputs, **_: _torch().autograd.backward(
        losses, seeds, retain, create, inputs=inputs
    ),
)

transforming: Private[[], bool] = Private(
    "torch._C._are_functorch_transforms_active",
    "tell whether torch.func transforms what runs",
    find=lambda: _torch()._C._are_functorch_transforms_active,
    instead=lambda: True,  # takes the public way
)


def _foreach(name: str, one: Callable[..., Any] | None = None) -> Private[..., Any]:
    """Return what does something to many tensors at once.

    https://docs.pytorch.org/docs/stable/torch.html#foreach-operations: in beta.
    """

    def in_turn(tensors: Iterable[Any], *rest: Any, **options: Any) -> list[Any]:
        act = one or getattr(_torch().Tensor, name)
        return [act(tensor, *rest, **options) for tensor in tensors]

    return Private(
        f"torch._foreach_{name}",
        f"call {name} on many tensors at once",
        find=lambda: getattr(_torch(), f"_foreach_{name}"),
        instead=in_turn,
    )


foreach_mul_ = _foreach("mul_")
foreach_zero_ = _foreach("zero_")
foreach_clamp_min_ = _foreach("clamp_min_")
foreach_clamp_max_ = _foreach("clamp_max_")
foreach_norm = _foreach("norm", lambda tensor, order=2: _torch().linalg.vector_norm(tensor, order))


def _add_in_turn(tensors: Iterable[Any], others: Iterable[Any], alpha: float = 1) -> None:
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=alpha)


foreach_add_: Private[..., Any] = Private(
    "torch._foreach_add_",
    "call add_ on many tensors at once",
    find=lambda: _torch()._foreach_add_,
    instead=_add_in_turn,
)


# ---- Modules

buffers_of: Private[[Any], dict[str, Any]] = Private(
    "torch.nn.Module._buffers",
    "keep the buffers of a frozen module as they are",
    find=lambda: lambda module: module._buffers,
    works=lambda of: "running_mean" in of(_torch().nn.BatchNorm1d(1)),
)

unsaved_buffers: Private[[Any], set[str]] = Private(
    "torch.nn.Module._non_persistent_buffers_set",
    "tell the caches of a frozen module from its buffers",
    find=lambda: lambda module: module._non_persistent_buffers_set,
    works=lambda of: of(_torch().nn.BatchNorm1d(1)) == set(),
)

has_forward_hooks: Private[[Any], bool] = Private(
    "torch.nn.Module._forward_hooks or _forward_pre_hooks",
    "tell whether hooks run with a frozen module",
    find=lambda: lambda module: bool(module._forward_hooks or module._forward_pre_hooks),
    instead=lambda module: True,  # its buffers are then kept, hooks or not
    works=lambda has: has(_torch().nn.ReLU()) is False,
)

batch_norm_classes: Private[[], tuple[type, ...]] = Private(
    "torch.nn.modules.batchnorm._BatchNorm",
    "know a batch norm of a class of somebody's own",
    find=lambda: lambda: (_torch().nn.modules.batchnorm._BatchNorm,),
    instead=lambda: tuple(
        getattr(_torch().nn, name) for name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
    ),
    works=lambda classes: issubclass(_torch().nn.SyncBatchNorm, classes()),
)

uncompiled: Private[[Callable[..., Any]], Callable[..., Any]] = Private(
    "torch._disable_dynamo",
    "keep a hook out of torch.compile without importing sympy",
    find=lambda: _torch()._disable_dynamo,
    instead=lambda function: _torch().compiler.disable(function),
)

view_base: Private[[Any], Any] = Private(
    "torch.Tensor._base",
    "follow what is written into a view of a tensor",
    find=lambda: lambda tensor: tensor._base,
    works=lambda base: base(_torch().zeros(2)[:1]) is not None,
)

# ---- Ranks

default_store: Private[[], Any] = Private(
    "torch.distributed.distributed_c10d._get_default_store",
    "tell which ranks did not come to an exchange that timed out",
    find=lambda: _torch().distributed.distributed_c10d._get_default_store,
    instead=lambda: None,
)

reset_reducer: Private[[Any], None] = Private(
    "torch.distributed.Reducer._reset_state",
    "sum over ranks beside DistributedDataParallel",
    find=lambda: lambda wrapper: wrapper.reducer._reset_state(),
    works=lambda _: hasattr(_torch()._C._distributed_c10d.Reducer, "_reset_state"),
)

running_wrapper: Private[[], Any] = Private(
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module",
    "see that a module runs inside another DistributedDataParallel",
    find=lambda: _torch().nn.parallel.DistributedDataParallel._get_active_ddp_module,
)

compiled_in_place: Private[[Any], bool] = Private(
    "torch.nn.Module._compiled_call_impl",
    "tell whether a module was compiled in place",
    find=lambda: lambda module: module._compiled_call_impl is not None,
    instead=lambda module: False,
    works=lambda compiled: compiled(_torch().nn.ReLU()) is False,
)


def _records(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch 2.11 has one group, or none
        groups = [group for group in (state._fsdp_param_group,) if group is not None]
    return [record for group in groups for record in group.fsdp_params]


fsdp_records: Private[[Any], list[Any]] = Private(
    "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
    "sum over ranks beside fully_shard",
    find=lambda: _records,
    works=lambda _: hasattr(import_module("torch.distributed.fsdp").FSDPModule, "_get_fsdp_state"),
)

gathered_parameter: Private[[Any], Any] = Private(
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam._unsharded_param",
    "sum over ranks beside fully_shard",
    find=lambda: (
        lambda record: getattr(record, "_unsharded_param", None)
    ),  # None before the first forward pass
)

# ---- Python: the end of the interpreter, and processes that a script starts


def _run_module(name: str = "__main__", alter_argv: bool = True) -> None:
    import runpy

    del alter_argv
    runpy.run_module(name, run_name="__main__", alter_sys=True)


# What python itself calls for -m: it sets argv[0], and its frames are the ones that python shows.
run_module_as_main: Private[..., Any] = Private(
    "runpy._run_module_as_main",
    "run a module as python -m does",
    find=lambda: import_module("runpy")._run_module_as_main,
    instead=_run_module,
)

end_threads: Private[[], None] = Private(
    "threading._shutdown",
    "wait for a script's threads before it reports",
    find=lambda: import_module("threading")._shutdown,
    instead=lambda: None,
    rules=("every rule",),
)

run_exit_functions: Private[[], None] = Private(
    "atexit._run_exitfuncs",
    "run what a script registered for its exit before it reports",
    find=lambda: import_module("atexit")._run_exitfuncs,
    instead=lambda: None,
    rules=("every rule",),
)


def _of_process(name: str, cannot: str, missing: Any) -> Private[[Any], Any]:
    """Return what reads an attribute of a process of multiprocessing."""
    return Private(
        f"multiprocessing.process.BaseProcess.{name}",
        cannot,
        find=lambda: lambda process: getattr(process, name, missing),
        instead=lambda process: missing,
        works=lambda _: (
            name in import_module("multiprocessing.process").BaseProcess.__init__.__code__.co_names
        ),
        rules=("every rule",),
    )


process_target = _of_process("_target", "tell what a process of multiprocessing is for", None)
process_arguments = _of_process("_args", "keep what the workers of a pool have seen", ())


# Where a forked child does what a spawned one need not: it has inherited nothing.
def _before_spawned() -> Callable[[Callable[[], None]], None]:
    kind = import_module("multiprocessing.context").SpawnProcess
    _ = kind._after_fork
    return lambda act: setattr(kind, "_after_fork", staticmethod(act))


before_spawned: Private[[Callable[[], None]], None] = Private(
    "multiprocessing.context.SpawnProcess._after_fork",
    "watch the processes that multiprocessing spawns",
    find=_before_spawned,
    instead=lambda act: None,
    rules=("every rule",),
)

running_children: Private[[], Any] = Private(
    "multiprocessing.process._children",
    "tell whether a script that seems to wait for ever waits for its children",
    find=lambda: lambda: getattr(sys.modules.get("multiprocessing.process"), "_children", ()),
    instead=lambda: ("unknown",),  # is patient, as if there were some
    works=lambda _: import_module("multiprocessing.process")._children is not None,
)
