"""Traces the computation of a loss: where the gradient stops, and which line made each node of the graph.

The graph of a loss shows which parameters the gradient reaches. It does not show the parameters before a
``detach``, which leaves no trace in the graph. This module therefore follows values from the parameters through
every operation, even where they have no graph.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from gradgate.call_sites import here, outwards
from gradgate.events import Frame
from gradgate.pytree import tensors_in
from gradgate.torch_compat import view_base

_DETACHING = {"detach", "detach_", "data", "stop_gradient"}
_TAKING = {"item", "tolist", "numpy", "__float__", "__array__"}


Why: TypeAlias = Literal[
    "detach",
    "no_grad",
    "inference_mode",
    "not differentiable",
    "value taken out",
    "requires_grad",
    "custom function",
    "reentrant checkpoint",
    "not used",
    "not in the graph",
    "not in the optimizer",
    "lr=0",
]


@dataclass(frozen=True)
class Stop:
    """The reason why a loss does not move a parameter.

    ``why`` is one of these kinds:

    - an operation without a gradient: "detach", "no_grad", "inference_mode", "not differentiable", "value taken
      out" (such as ``.item()``), "custom function" or "reentrant checkpoint";
    - the parameter itself: "requires_grad";
    - no optimizer uses the gradient: "not in the optimizer" or "lr=0";
    - the loss does not depend on the parameter: "not used", or "not in the graph" if a loss was given rather than
      the function that computes it.

    ``op`` is the operation's name, ``frame`` the user's line if it is known.
    """

    why: Why
    op: str = ""
    frame: Frame | None = None

    @property
    def unstepped(self) -> bool:
        """Whether the parameter has a gradient that no optimizer uses."""
        return self.why in ("not in the optimizer", "lr=0")

    def __str__(self) -> str:
        op = f" ({self.op})" if self.op and self.op != self.why else ""
        return f"{self.why}{op}{f' at {location(self.frame)}' if self.frame else ''}"


def location(frame: Frame) -> str:
    """Return a line of code as ``file:line``."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"


class FlowCut:
    """An operation whose input has a graph, but whose output has none.

    The input was computed from ``sources``: parameters and earlier cuts. ``behind`` holds the parameters behind
    this operation, including those behind earlier cuts.
    """

    def __init__(self, why: Why, op: str, sources: frozenset[Any]) -> None:
        self.stop, self.sources = Stop(why, op, _frame()), sources
        behind = (source.behind if isinstance(source, FlowCut) else {source} for source in sources)
        self.behind: frozenset[int] = frozenset[int]().union(*behind)


class Trace(TorchFunctionMode):
    """Follows values while it is active.

    Args:
        parameters: the parameters to follow.

    Attributes:
        taken: cuts at which values left torch, as numbers.
        frames: for each node of the graph, the line that made it.
        functions: names of the custom autograd functions that ran. No graph shows their inner operations.
        used: the sources of the loss: ids of parameters, and cuts. Known after :meth:`end`.
        cuts: all cuts through which the loss was computed, nearest to the loss first. Known after :meth:`end`.
        ended: whether a loss was traced.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self._followed = {id(parameter) for parameter in parameters}
        self._sources: Any = WeakIdKeyDictionary()  # by tensor: ids of parameters, and cuts
        self.taken: list[FlowCut] = []
        self.frames: dict[Any, Frame] = {}
        self.functions: set[str] = set()
        self.used: frozenset[Any] = frozenset()
        self.cuts: tuple[FlowCut, ...] = ()
        self.ended = False

    def end(self, loss: Tensor) -> None:
        """Record the cuts through which a loss was computed."""
        self.used, self.ended = self._sources_of(loss), True
        queue = list(self.used)
        cuts: dict[FlowCut, None] = {}
        for source in queue:  # grows during the loop
            if isinstance(source, FlowCut) and source not in cuts:
                cuts[source] = None
                queue += source.sources
        self.cuts = tuple(cuts)

    def _sources_of(self, tensor: Tensor) -> frozenset[Any]:
        if id(tensor) in self._followed:
            return frozenset([id(tensor)])
        sources: frozenset[Any] = self._sources.get(tensor, frozenset())
        return sources

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = list(tensors_in((args, kwargs)))
        carried = any(tensor.requires_grad for tensor in given)
        result = func(*args, **(kwargs or {}))
        op = _name(func)
        sources = frozenset[Any]().union(*map(self._sources_of, given))
        takes_a_shape = op.endswith("_like") or op.startswith("new_")
        if sources and not takes_a_shape:
            self._note(op, result, given, sources, carried)
        return result

    def _note(
        self, op: str, result: Any, given: list[Tensor], sources: frozenset[Any], carried: bool
    ) -> None:
        if op in _TAKING:
            self.taken.append(FlowCut("value taken out", op, sources))
            return
        made = list(tensors_in(result))
        if (op.endswith("_") or op == "__setitem__") and given:
            made += given[:1]
            base = view_base(given[0])  # writing into a view writes into its base
            if base is not None and id(base) not in self._followed:
                self._sources[base] = self._sources_of(base) | sources
        cut = None
        for tensor in made:
            behind = sources
            if tensor.requires_grad:
                if tensor.grad_fn is not None and tensor.grad_fn not in self.frames and (frame := _frame()):
                    self.frames[tensor.grad_fn] = frame
            elif carried and not self._within_function():
                cut = cut or FlowCut(_why(op), op, sources)
                behind = frozenset([cut])
            if id(tensor) not in self._followed:
                self._sources[tensor] = behind

    def _within_function(self) -> bool:
        """Return whether a custom autograd function is running: its forward pass has no graph."""
        names = _forward_passes()  # not by the frame of Function.apply, which torch 2.15 does not have
        for frame in outwards(sys._getframe()):
            if frame.f_code in names:
                self.functions.add(names[frame.f_code])
                return True
        return False


def _forward_passes() -> dict[CodeType, str]:
    """Return the name of each custom autograd function, by the code of its forward pass."""
    names: dict[CodeType, str] = {}
    queue: list[Any] = torch.autograd.Function.__subclasses__()
    for kind in queue:  # grows during the loop
        queue += kind.__subclasses__()
        for method in (kind.forward, kind.setup_context):
            code = getattr(inspect.unwrap(method), "__code__", None)
            if code is not None:
                names.setdefault(code, kind.__name__)
    return names


def _name(func: Any) -> str:
    name: str = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":  # of a property: x.data
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name


def _why(op: str) -> Why:
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    if not torch.is_grad_enabled():
        return "no_grad"
    return "detach" if op in _DETACHING else "not differentiable"


def _frame() -> Frame | None:
    site = here()
    return site[0] if site else None
