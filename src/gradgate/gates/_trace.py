"""Watches a loss being computed: where gradient stops on its way, and which line made which part of the graph.

The graph of a loss knows what gradient reaches. It does not know what it might have reached: ``detach`` leaves no
trace in it. So values are followed through every operation, from the parameters on, also where the graph ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from gradgate.call_sites import here
from gradgate.events import Frame
from gradgate.torch_compat import view_base

Kind: TypeAlias = Literal["detach", "no_grad", "inference_mode", "not differentiable", "value taken out"]

_DETACHING = {"detach", "detach_", "data", "stop_gradient"}
_TAKING = {"item", "tolist", "numpy", "__float__", "__array__"}


@dataclass(frozen=True, eq=False)
class Cut:
    """An operation behind which there is no graph any more, although there was one before it."""

    kind: Kind
    op: str
    frame: Frame | None
    sources: frozenset[Any]  # the parameters and cuts that its input was computed from
    behind: frozenset[int]  # the parameters, also those behind the cuts


def _cut(kind: Kind, op: str, frame: Frame | None, sources: frozenset[Any]) -> Cut:
    cuts = [one for one in sources if isinstance(one, Cut)]
    direct = frozenset(one for one in sources if not isinstance(one, Cut))
    return Cut(kind, op, frame, sources, direct.union(*(one.behind for one in cuts)))


class Trace(TorchFunctionMode):
    """Follows values while it is active.

    Args:
        parameters: what is followed.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self._followed = {id(one) for one in parameters}
        self._sources: Any = WeakIdKeyDictionary()  # tensor: ids of parameters, and cuts
        self.taken: list[Cut] = []  # values that left torch
        self.cuts: tuple[Cut, ...] = ()  # that the loss was computed through, once it is there
        self.frames: dict[Any, Frame] = {}  # a node of the graph: the line that made it
        self.functions: set[str] = set()  # custom autograd functions that ran, whose inside has no graph

    def sources(self, tensor: Tensor) -> frozenset[Any]:
        """Return what a tensor was computed from: ids of parameters, and cuts with others behind them."""
        if id(tensor) in self._followed:
            return frozenset([id(tensor)])
        found: frozenset[Any] = self._sources.get(tensor, frozenset())
        return found

    def cuts_of(self, loss: Tensor) -> tuple[Cut, ...]:
        """Return the cuts that a loss was computed through, those nearer to it first."""
        found = dict.fromkeys(one for one in self.sources(loss) if isinstance(one, Cut))
        queue = list(found)
        for cut in queue:  # grows meanwhile
            further = [one for one in cut.sources if isinstance(one, Cut) and one not in found]
            found.update(dict.fromkeys(further))
            queue += further
        return tuple(found)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = list(_tensors((args, kwargs)))
        carried = any(one.requires_grad for one in given)
        result = func(*args, **(kwargs or {}))
        op = _name(func)
        sources = frozenset[Any]().union(*map(self.sources, given))
        takes_a_shape = op.endswith("_like") or op.startswith("new_")
        if sources and not takes_a_shape:
            self._note(op, result, given, sources, carried)
        return result

    def _note(
        self, op: str, result: Any, given: list[Tensor], sources: frozenset[Any], carried: bool
    ) -> None:
        if op in _TAKING:
            self.taken.append(_cut("value taken out", op, _frame(), sources))
            return
        made = list(_tensors(result))
        if (op.endswith("_") or op == "__setitem__") and given:
            made += given[:1]
            base = view_base(given[0])  # what is written into a view is in the whole of it
            if base is not None and id(base) not in self._followed:
                self._sources[base] = self.sources(base) | sources
        cut = None
        for one in made:
            behind = sources
            if one.requires_grad:
                if one.grad_fn is not None and one.grad_fn not in self.frames:
                    frame = _frame()
                    if frame is not None:
                        self.frames[one.grad_fn] = frame
            elif carried and not self._within_function():
                if cut is None:
                    cut = _cut(_kind(op), op, _frame(), sources)
                behind = frozenset([cut])
            if id(one) not in self._followed:
                self._sources[one] = behind

    def _within_function(self) -> bool:
        """Say whether a custom autograd function is running, whose forward pass has no graph by itself."""
        names = _forward_passes()
        frame = inspect.currentframe()
        while frame is not None:
            name = names.get(frame.f_code)
            if name is not None:
                self.functions.add(name)
                return True
            frame = frame.f_back
        return False


def _forward_passes() -> dict[CodeType, str]:
    """Return the code that custom autograd functions run forwards, and their names."""
    names: dict[CodeType, str] = {}
    queue: list[Any] = torch.autograd.Function.__subclasses__()
    for kind in queue:  # grows meanwhile
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


def _kind(op: str) -> Kind:
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    if not torch.is_grad_enabled():
        return "no_grad"
    return "detach" if op in _DETACHING else "not differentiable"


def _frame() -> Frame | None:
    site = here()
    return site[0] if site else None


def _tensors(nest: Any) -> Iterator[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, (list, tuple)):
        for one in nest:
            yield from _tensors(one)
    elif isinstance(nest, dict):
        for one in nest.values():
            yield from _tensors(one)
