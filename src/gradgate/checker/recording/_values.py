"""Record the graph of values of the first steps, with a mode that sees every operation of the main thread.

Autograd's graph ends where a value leaves it. This graph goes on: it also shows from which parameters a detached
value came, and which line detached it. The mode only looks: it calls each operation with the same arguments, and
returns the same result.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from gradgate.autograd_graph import Graph
from gradgate.call_sites import kind_of
from gradgate.checker.recording._patches import caller
from gradgate.events import Read, Site, Value, Values
from gradgate.torch_compat import anything_compiled, top_function_mode, transforming, view_base

_STEPS = 12  # of three steps, a warm-up or a second network's turn is not seen
_CALLS = 2  # backward calls of one line in one window, after which its other micro-batches look the same
_MOST_NODES = 60_000
_MOST_TIED = 16_384  # tensors that may be alive or gone
_MOST_NUMBERS = 256  # numbers that Python read, and that may come back
_ROUNDING = 4 * 2.0**-52  # of one product and one quotient
_COMMON = (0.0, 1.0, -1.0, 0.5, 2.0)  # numbers that are also written in scripts

_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120  (the path as code objects spell it)
_DATA: Any = inspect.getattr_static(Tensor, "data")
_PROPERTIES = frozenset(("data", "real", "imag", "T", "mT", "H", "mH"))
_PLAIN = (Tensor, Parameter)  # the attributes of other classes may run the user's code
_READS = frozenset(("item", "tolist", "numpy", "__float__", "__int__", "__array__", "__format__", "__repr__"))
_NUMBERS = frozenset(("item", "__float__"))
_FLAT = frozenset(
    ("normal", "round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside")
)  # derivative: zero
_DRAWS = frozenset(("multinomial", "bernoulli", "poisson", "randint"))  # a discrete draw is data
_FIRST = frozenset(("type_as", "expand_as", "view_as", "reshape_as", "masked_fill", "masked_select"))
_SILENT = frozenset(("grad", "requires_grad", "retain_grad", "clip_grad_norm", "backward"))
_SAME_OPS = {
    **dict.fromkeys(("iadd", "radd"), "add"),
    **dict.fromkeys(("isub", "rsub", "subtract"), "sub"),
    **dict.fromkeys(("imul", "rmul", "multiply"), "mul"),
    **dict.fromkeys(("truediv", "itruediv", "rtruediv", "true_divide", "divide"), "div"),
}


class ValueGraph(TorchFunctionMode):
    """Owns the graph, and the numbers of the tensors that are alive."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder
        self._nodes: list[Value] = []
        self._reads: list[Read] = []
        self._tied: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # id of a tensor -> its value
        self._leaf_of: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # id of a tensor -> its leaf
        self._leaves: list[int] = []  # leaf -> parameter
        self._unknown: dict[int, weakref.ref[Tensor]] = {}  # leaves that were no known parameters so far
        self._leaf_nodes: dict[tuple[int, bool], int] = {}
        self._numbers: dict[float, int] = {}  # a number that Python read -> its value
        # (a sum, a read number) -> the number, and what an addend of the sum was divided by it
        self._ratios: dict[tuple[Site, Site], tuple[float, float]] = {}
        self._operations: dict[Any, _Operation] = {}
        self._off: list[tuple[int, Site]] = []
        # The newest detached value, until the next call
        self._detached: tuple[weakref.ref[Tensor], int] | None = None
        self._dropped: list[int] = []
        self._met_data = False  # among the operands of the operation that is being recorded
        self._calls: Counter[Site] = Counter()  # backward calls of this window
        self._process = self._thread = -1
        self._entered = self._ended = False

    # Turning it on and off

    def begin(self) -> None:
        """Record from now on. Compiled code is never recorded, because the mode would be compiled with it."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        if top_function_mode.lost or anything_compiled():
            self._ended = True
        self._resume()

    def _resume(self) -> None:
        if not self._ended and not self._entered and self._mine():
            self._entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def _pause(self) -> None:
        """Take the mode off the stack, unless the script has put another one on it."""
        if not self._entered or not self._mine():
            return
        others: list[ValueGraph] = []  # of watchers that began later
        while type(top := top_function_mode.use()) is ValueGraph and top is not self:
            others.append(top)
            top.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if top is self:
            self._entered = False
            self.__exit__(None, None, None)
        for other in reversed(others):
            other.__enter__()  # type: ignore[no-untyped-call]

    def _mine(self) -> bool:
        return self._thread == threading.get_ident() and self._process == os.getpid()

    def end(self, *_: Any, **__: Any) -> None:
        """Stop recording."""
        self._ended = True
        self._pause()
        self._resolve()
        for kept in (self._tied, self._leaf_of, self._unknown, self._numbers, self._ratios):
            kept.clear()

    def stepped(self) -> None:
        """Go on after a step, or end."""
        if self._ended:
            return
        self._calls.clear()
        self._resolve()  # a function may end, and its model with it, before the run does
        if self._recorder.steps >= _STEPS:
            self.end()
        else:
            self._resume()

    def values(self) -> Values:
        """Return the graph so far."""
        self._resolve()
        return Values(tuple(self._nodes), tuple(self._reads), tuple(self._leaves), tuple(self._dropped))

    def _resolve(self) -> None:
        """Find the parameters that leaves are: a loss or an optimizer may meet them later."""
        for leaf, ref in list(self._unknown.items()):
            tensor = ref()
            number = None if tensor is None else self._recorder.parameters.numbers.known(tensor)
            if number is not None:
                self._leaves[leaf] = number
                del self._unknown[leaf]

    # Seeing operations

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._detached is not None:
            ref, number = self._detached
            if ref() is None:  # a call that used it would hold it now
                self._dropped.append(number)
            self._detached = None
        known = self._operations.get(func)
        if known is None:
            known = self._operations[func] = _Operation.of(func)
        original = known.original
        result = original(*args, **kwargs) if kwargs else original(*args)
        recorder = self._recorder
        if (
            self._ended
            or not self._entered
            or recorder.in_backward
            or recorder.thread.quiet
            or not recorder.active
        ):
            return result
        try:
            if known.name and not (torch.compiler.is_compiling() or transforming.use()):
                self._record(known.name, known.in_place, args, kwargs, result)
        except Exception as failure:
            if not recorder.failed(failure):
                raise
            self.end()
        return result

    def _record(self, name: str, in_place: bool, args: Any, kwargs: Any, result: Any) -> None:
        kind = type(result)
        if name in _READS:
            self._read(name, args[0], result)
            return
        results: Sequence[Tensor]
        if kind in _PLAIN:
            results = (result,)
        elif issubclass(kind, (list, tuple)):
            results = [each for each in result if type(each) in _PLAIN]
        elif name == "setitem":
            results, in_place = (args[0],), True
        else:
            return
        parents: list[int] = []
        self._met_data = False
        if name in ("add", "sub"):
            parents += self._multiples(args)
        if name == "broadcast_tensors":
            for given, each in zip(_tensors(args), results, strict=False):
                if given is not each:
                    self._add_result(
                        name, tuple(filter(lambda node: node >= 0, (self.look_up(given),))), each
                    )
            return
        if not (name in _DRAWS or name.endswith("_like") or name.startswith("new_")):
            self._gather(
                args[:1] if name in _FIRST else args, parents, masks=name not in ("getitem", "where")
            )
            if kwargs and name not in _FIRST:
                self._gather(kwargs.values(), parents)
        if parents:
            for each in results:
                self._add_result(name, tuple(parents), each, in_place)

    def _add_result(
        self, name: str, parents: tuple[int, ...], tensor: Tensor, in_place: bool = False
    ) -> None:
        if id(tensor) in self._leaf_of and self._leaf_of[id(tensor)][0]() is tensor:
            return  # a parameter that is changed in place
        live = tensor.requires_grad and _has_graph(tensor) and name not in _FLAT
        number = self.add(name, parents, live, tensor, data=self._met_data)
        self._tie(tensor, number)
        if name == "detach" and kind_of(caller().f_code.co_filename) == "user":
            self._detached = weakref.ref(tensor), number
        base = view_base.use(tensor) if in_place else None
        if type(base) is Tensor and id(base) not in self._leaf_of:  # writing into a view writes into its base
            old = self.look_up(base)
            self._tie(
                base, self.add(name, (number, old) if old >= 0 else (number,), base.requires_grad, base)
            )

    def _read(self, name: str, tensor: Any, result: Any) -> None:
        node = self.look_up(tensor) if type(tensor) in _PLAIN else -1
        if node < 0:
            return
        self._reads.append(Read(node, name, self._recorder.site()))
        if name in _NUMBERS and result not in _COMMON:
            number = self.add(name, (node,), False, tensor)
            self._numbers[float(result)] = number
            if len(self._numbers) > _MOST_NUMBERS:
                del self._numbers[next(iter(self._numbers))]

    def _multiples(self, args: Any) -> list[int]:
        """Return the numbers that Python read and that an addend is a multiple of, as in ``beta * kl.item()``.

        The multiple has to be the same as at the last time, although the number is another one.
        """
        addends = [each for each in args if type(each) is float and each not in self._numbers]
        found, site = [], self._recorder.site() if addends else ()
        newest = {self._nodes[node].site: (number, node) for number, node in self._numbers.items()}
        for addend in addends:
            for number, node in newest.values():
                key, ratio = (site, self._nodes[node].site), addend / number if number else 0.0
                before = self._ratios.get(key)
                if (
                    before
                    and number != before[0]
                    and ratio
                    and abs(before[1] - ratio) <= _ROUNDING * abs(ratio)
                ):
                    found.append(node)
                self._ratios[key] = number, ratio
        return found

    # Numbers of tensors

    def add(
        self,
        op: str,
        parents: tuple[int, ...],
        live: bool,
        tensor: Tensor,
        leaf: int = -1,
        data: bool = False,
    ) -> int:
        """Add a value to the graph. Return its number."""
        off = self._off[-1][1] if self._off and not torch.is_grad_enabled() else ()
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        self._nodes.append(
            Value(op, parents, live, self._recorder.site(), leaf, tensor.numel(), whole, off, data)
        )
        if len(self._nodes) >= _MOST_NODES:
            self._ended = True
        return len(self._nodes) - 1

    def _tie(self, tensor: Tensor, number: int) -> None:
        self._tied[id(tensor)] = weakref.ref(tensor), number
        if len(self._tied) > _MOST_TIED:
            self._tied = {key: entry for key, entry in self._tied.items() if entry[0]() is not None}

    def look_up(self, tensor: Tensor) -> int:
        """Return the number of a tensor; -1 for data. A leaf, and a result of an unseen operation, get one now."""
        entry = self._tied.get(id(tensor))
        number = entry[1] if entry is not None and entry[0]() is tensor else -1
        known = self._leaf_of.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return self._leaf_node(known[1], tensor, number)
        if not tensor.requires_grad:
            return self._new_leaf(tensor, number) if type(tensor) is Parameter else number
        if not _has_graph(tensor):
            base = view_base.use(tensor)
            if base is None or not base.requires_grad:
                return self._new_leaf(tensor, number)
            if number < 0:  # a view without a graph looks like a leaf
                number = self.add("view", (self.look_up(base),), False, tensor)
                self._tie(tensor, number)
            return number
        if number < 0:  # computed while nothing was recorded
            number = self.add("unseen", self._leaves_of(tensor), True, tensor)
            self._tie(tensor, number)
        elif not self._nodes[number].live and self._nodes[number].op not in _FLAT:
            # The result of an autograd.Function, whose own operations run without a graph
            number = self.add("apply", self._leaves_of(tensor), True, tensor)
            self._tie(tensor, number)
        return number

    def _leaves_of(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the leaves that a tensor's graph leads to."""
        return tuple(self.look_up(leaf) for leaf in Graph(tensor).leaves.values() if type(leaf) in _PLAIN)

    def _new_leaf(self, tensor: Tensor, origin: int) -> int:
        leaf = len(self._leaves)
        self._leaf_of[id(tensor)] = weakref.ref(tensor), leaf
        known = self._recorder.parameters.numbers.known(tensor)
        self._leaves.append(-1 if known is None else known)
        if known is None:
            self._unknown[leaf] = weakref.ref(tensor)
        return self._leaf_node(leaf, tensor, origin)

    def _leaf_node(self, leaf: int, tensor: Tensor, origin: int) -> int:
        key = leaf, tensor.requires_grad
        if key not in self._leaf_nodes:
            parents = (origin,) if origin >= 0 else ()
            self._leaf_nodes[key] = self.add("leaf", parents, tensor.requires_grad, tensor, leaf)
        return self._leaf_nodes[key]

    def _gather(
        self, given: Iterable[Any], parents: list[int], *, masks: bool = True, depth: int = 0
    ) -> None:
        for each in given:
            kind = type(each)
            if kind is Tensor or kind is Parameter:
                if masks or each.dtype is not torch.bool:
                    number = self.look_up(each)
                    if number >= 0:
                        parents.append(number)
                    else:
                        self._met_data = True
            elif kind is float:
                number = self._numbers.get(each, -1)
                if number >= 0:
                    parents.append(number)
            elif (kind is tuple or kind is list) and depth < 4 and len(each) < 4096:
                self._gather(each, parents, masks=masks, depth=depth + 1)

    # Calls that are no operations

    def derived(self, tensor: Tensor, data: Any) -> None:
        """Note that a new parameter holds the values of another tensor."""
        if self._entered and not self._ended and type(data) in _PLAIN and (number := self.look_up(data)) >= 0:
            self._tie(tensor, number)
            self.look_up(tensor)

    def differentiated(self, given: Iterable[Tensor], results: Iterable[Any]) -> None:
        """Note derivatives. They come from the values and from the point."""
        if self._entered and not self._ended:
            parents: list[int] = []
            self._gather(given, parents)
            for each in results:
                if type(each) in _PLAIN:
                    self._tie(each, self.add("grad", tuple(parents), each.requires_grad, each))

    def back_propagated(self, roots: Sequence[Any], site: Site) -> int:
        """Return the number of the loss; -1 if it is not known."""
        if self._ended or not self._mine():
            return -1
        known = [self.look_up(root) for root in roots if type(root) in _PLAIN and root.requires_grad]
        self._calls[site] += 1
        if self._calls[site] >= _CALLS:
            self._pause()
        if len(known) > 1:
            return self.add("add", tuple(known), True, roots[0])
        return known[0] if known else -1

    def turned_off(self, context: Any, site: Site) -> None:
        """Note the line that turns gradients off."""
        self._off.append((id(context), site))

    def turned_on(self, context: Any) -> None:
        """Note that the block of a line has ended."""
        self._off = [entry for entry in self._off if entry[0] != id(context)]


def _has_graph(tensor: Tensor) -> bool:
    """Return whether a tensor has a graph. torch refuses to tell of some views of values that were written to."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return False


def _tensors(args: Any) -> list[Tensor]:
    return list(args[0]) if len(args) == 1 and type(args[0]) in (list, tuple) else list(args)


class _Operation(NamedTuple):
    """What torch passes to a mode: an operation."""

    name: str  # the same for ``a + b`` and ``torch.add``; "" if it computes no value
    in_place: bool
    original: Callable[..., Any]  # without the watcher's wrapper, which has seen the call already

    @classmethod
    def of(cls, func: Callable[..., Any]) -> _Operation:
        full, owner = getattr(func, "__name__", ""), getattr(func, "__self__", None)
        code = getattr(func, "__code__", None)
        if code is not None and code.co_filename.startswith(_HERE):
            func = func.__wrapped__  # type: ignore[attr-defined]
        if full in ("__get__", "__set__"):
            if type(owner) is property and owner is inspect.getattr_static(Tensor, "data"):
                func, owner = getattr(_DATA, full), _DATA
            name = getattr(owner, "__name__", "")
            return cls(name if full == "__get__" and name in _PROPERTIES else "", False, func)
        name = full if full in _READS else full.strip("_")
        in_place = (full.endswith("_") and not full.endswith("__")) or full in (
            "__iadd__",
            "__isub__",
            "__imul__",
        )
        return cls("" if name in _SILENT else _SAME_OPS.get(name, name), in_place, func)
