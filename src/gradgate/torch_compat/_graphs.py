"""Undocumented facts about graphs and their tensors."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from gradgate.torch_compat._private import Private, torch

T = TypeVar("T")


def _a_node() -> Any:
    import torch

    with torch.enable_grad():
        return torch.zeros((), requires_grad=True).view_as(torch.zeros(())).grad_fn


def _backward(loss: Any) -> None:
    """Run a backward pass of a probe, unseen by a checker that has wrapped torch's function."""
    inspect.unwrap(torch().autograd.backward)(loss)


_asked = itertools.count()

node_number: Private[[Any], int] = Private(
    "torch.autograd.graph.Node._sequence_nr",
    "tell in which order the nodes of a graph were made",
    find=lambda: lambda node: node._sequence_nr(),
    # Numbers the nodes in the order in which they are first asked about.
    instead=lambda node: node.metadata.setdefault("gradgate number", next(_asked)),
    works=lambda number: 0 <= number(_a_node()) < number(_a_node()),
    rules=("GG203", "GG303", "GG404", "GG405", "GG601"),
)

next_node_number: Private[[], int] = Private(
    "torch._C._autograd._get_sequence_nr",
    "tell how large a graph is without walking it",
    find=lambda: torch()._C._autograd._get_sequence_nr,
    instead=lambda: next(_asked) ** 2,  # no two differences are equal, so every graph is walked
    works=lambda number: 0 <= number() < [_a_node(), number()][1],
)

tensor_version: Private[[Any], int] = Private(
    "torch.Tensor._version",
    "see that a tensor was written in place",
    find=lambda: attrgetter("_version"),  # in C: it runs at every backward pass
    instead=lambda tensor: 0,
    works=lambda version: version(torch().zeros(1).add_(1)) == 1,
    rules=("GG201", "GG202", "GG302", "GG505"),
)


node_shape: Private[[Any, int], tuple[int, ...]] = Private(
    "torch.autograd.graph.Node._input_metadata",
    "read how many items a loss covers",
    find=lambda: lambda node, output: tuple(node._input_metadata[output].shape),
    works=lambda shape: shape(_a_node(), 0) == (),
    rules=("GG102", "GG103", "GG104", "GG106", "GG107", "GG406"),
)


def _saved(node: Any, name: str) -> Any:
    raw = getattr(node, f"_raw_saved_{name}", None)
    return raw.data if raw is not None and raw.unpack_hook is None else None


def _is_never_unpacked(saved: Callable[[Any, str], Any]) -> bool:
    """Return whether ``saved`` reads a factor of a product, but not a factor that hooks have packed."""
    first, second = (torch().ones(2, requires_grad=True) for _ in range(2))
    with torch().enable_grad():
        plain = first * second
        with torch().autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            packed = first * second
    found, hidden = saved(plain.grad_fn, "other"), saved(packed.grad_fn, "other")
    return found.data_ptr() == second.data_ptr() and hidden is None


# Reading `_saved_other` itself would run the hooks: a checkpoint would run its whole forward pass again.
saved_tensor: Private[[Any, str], Any] = Private(
    "torch._C._autograd.SavedTensor.data",
    "read a factor of a product without unpacking it",
    find=lambda: _saved,
    instead=lambda node, name: None,
    works=_is_never_unpacked,
    rules=("GG203",),
)


def is_packed(node: Any) -> bool:
    """Return whether hooks have packed a tensor that a node saved, as a checkpoint does."""
    raw = (getattr(node, name, None) for name in dir(node) if name.startswith("_raw_saved_"))
    saved = [each for part in raw for each in (part if isinstance(part, (tuple, list)) else (part,))]
    return any(each is not None and each.unpack_hook is not None for each in saved)


def node_zeros(node: Any, output: int) -> Any:
    """Return a gradient of zeros for an output of a node, which :data:`node_shape` has to show."""
    meta = node._input_metadata[output]
    return torch().zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)


def _called(node: Any, gradients: dict[int, Any]) -> list[Any]:
    given = node(*(gradients.get(output) for output in range(len(node._input_metadata))))
    passed = given if isinstance(given, tuple) else (given,)
    return [
        None if child is None or gradient is None else gradient.to(child._input_metadata[output].dtype)
        for (child, output), gradient in zip(node.next_functions, passed, strict=False)
    ]


def _calls_once_more(call: Callable[[Any, dict[int, Any]], list[Any]]) -> bool:
    """Return whether a node can be called without its hooks, and still be used by a backward pass."""
    ran: list[Any] = []
    with torch().enable_grad():
        x = torch().ones((), requires_grad=True)
        y = x.exp()
    y.register_hook(ran.append)
    y.grad_fn.register_hook(lambda *_: ran.append(_))
    with torch().no_grad():
        (passed,) = call(y.grad_fn, {0: torch().ones(())})
    alone = not ran and x.grad is None
    _backward(y)
    return alone and float(passed) == float(x.grad)


call_node: Private[[Any, dict[int, Any]], list[Any]] = Private(
    "torch.autograd.graph.Node.__call__",
    "send the gradients of single samples through a graph",
    find=lambda: _called,
    works=_calls_once_more,
)


def _hooks(tensor: Any) -> list[Any]:
    return [hooks for hooks in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks) if hooks]


def _shows_hooks(hooks: Callable[[Any], list[Any]]) -> bool:
    ran: list[Any] = []
    x = torch().ones((), requires_grad=True)
    x.register_hook(lambda gradient: gradient * 2)
    (table,) = hooks(x)
    for key in table:
        table[key] = ran.append
    with torch().enable_grad():
        _backward(x * 3)
    return len(ran) == 1 and float(x.grad) == 3


# The tables of a leaf's hooks. The first holds hooks on its gradient, the other one hooks after accumulation.
leaf_hooks: Private[[Any], list[Any]] = Private(
    "torch.Tensor._backward_hooks",
    "see which hooks clip the gradient of a micro-batch",
    find=lambda: _hooks,
    instead=lambda tensor: [],
    works=_shows_hooks,
)


def stored_stack(node: Any) -> Any:
    """Return the stack that anomaly mode got from :data:`stack_formatter` and stored in the node."""
    return node.metadata.get("traceback_")


def _is_asked(place: Callable[[], tuple[ModuleType, str] | None]) -> bool:
    """Return whether anomaly mode calls the function at this place, and stores its result in a new node."""
    import torch

    found = place()
    if found is None:
        return False
    module, name = found
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


def sparse_tensor(indices: T, values: T, shape: Any) -> T:
    """Return a sparse tensor without checking its indices.

    torch 2.11 warns that it does not check them, even if ``check_invariants=False`` asks for exactly that.
    """
    import torch

    with torch.sparse.check_sparse_tensor_invariants(False):
        made: Any = torch.sparse_coo_tensor(indices, values, shape)  # type: ignore[arg-type]
    return made  # type: ignore[no-any-return]


# When a node is made, anomaly mode calls the function at this place to format the stack. A faster function can
# replace it: torch/csrc/autograd/python_anomaly_mode.cpp.
stack_formatter: Private[[], tuple[ModuleType, str] | None] = Private(
    "torch.fx.traceback.format_stack",
    "name the lines that made the parts of a loss",
    find=_stack_formatter,
    instead=lambda: None,
    works=_is_asked,
    rules=("GG102", "GG103", "GG104", "GG105", "GG106", "GG203", "GG402", "GG403", "GG404", "GG405", "GG601"),
)


def _knows_its_nodes(_: Any) -> bool:
    """Return whether nodes still have the names and saved values from which gradgate reads losses."""
    import torch

    nn = torch.nn.functional
    with torch.enable_grad():
        x, ones = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
        samples: dict[str, tuple[Any, ...]] = {
            "Mean": (x.mean(), "self_sym_sizes", "self_sym_numel"),
            "Sum": (x.sum(), "self_sym_sizes"),
            "Mul": (x * ones, "other"),
            "Div": (x / ones, "other"),
            "Pow": (x**2, "exponent"),
            "LogSoftmax": (x.log_softmax(1), "result", "dim"),
            "MseLoss": (nn.mse_loss(x, ones), "self", "reduction"),
            "NllLoss": (
                nn.nll_loss(x, torch.tensor([0, 1])),
                *("target", "ignore_index", "weight", "total_weight", "reduction"),
            ),
        }
    return all(
        result.grad_fn.name() == f"{operation}Backward0"
        and all(hasattr(result.grad_fn, f"_saved_{value}") for value in saved)
        for operation, (result, *saved) in samples.items()
    )


reads_losses: Private[[], bool] = Private(
    "a node's name or a value that it saves",
    "read what a loss is made of",
    find=lambda: lambda: True,
    instead=lambda: False,
    works=_knows_its_nodes,
    rules=("GG101", "GG102", "GG103", "GG104", "GG105", "GG106", "GG203", "GG303", "GG402"),
)

view_base: Private[[Any], Any] = Private(
    "torch.Tensor._base",
    "follow writes into a view of a tensor",
    find=lambda: lambda tensor: tensor._base,
    works=lambda base: base(torch().zeros(2)[:1]) is not None,
)
