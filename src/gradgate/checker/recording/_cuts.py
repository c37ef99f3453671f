"""What takes a value out of the graph: detach, item, numpy, data, argmax, a new parameter."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.autograd_graph import Graph
from gradgate.checker.recording._backward import Backwards
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._tracing import tracing
from gradgate.checker.recording._variables import variables_of
from gradgate.events import Cut, Ids, Site, is_on_purpose
from gradgate.torch_compat import as_torch_itself

_CUTS = ("detach", "detach_", "item", "numpy", "tolist", "argmax", "argmin")
_CUTS_PER_LINE = 3
_MOST_NODES = 20_000
_DATA: Any = inspect.getattr_static(Tensor, "data")


class Cuts:
    """Watches methods of tensors that return something without a graph."""

    def __init__(self, recorder: Recorder, backwards: Backwards) -> None:
        self._recorder = recorder
        self._backwards = backwards
        self._cuts: Counter[Site] = Counter()
        self._entries: Counter[Site] = Counter()
        self.missing: set[int] = set()  # parameters that no gradient has reached, once that is looked for

    def install(self) -> None:
        """Replace the methods on torch.Tensor, which inherits them."""
        patches = self._recorder.patches
        for name in _CUTS:
            patches.replace(Tensor, name, self._cutting(getattr(Tensor, name), name))

    def _cutting(self, original: Any, name: str) -> Any:
        recorder = self._recorder

        @functools.wraps(original)
        def wrapper(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if recorder.looking and recorder.active:
                self.cut(tensor, name)
            return original(tensor, *args, **kwargs)

        return wrapper

    def cut(self, tensor: Tensor, name: str) -> None:
        """Record that a tensor's value was taken out of the graph, a few times for each line.

        What runs under ``no_grad`` is mostly meant to: there it counts where parameters are suspected.
        """
        recorder = self._recorder
        if tracing() or recorder.quiet or self._backwards.in_backward or is_on_purpose():
            return
        with as_torch_itself():
            if not tensor.requires_grad or is_lazy(tensor):
                return
        with recorder.working():
            site = recorder.site()
            self._cuts[site] += 1
            if not site or self._cuts[site] > _CUTS_PER_LINE:
                return
            ids = self._behind(tensor)
            if ids and (name != "no_grad" or ids & self.missing):
                recorder.add(Cut(site, name, ids, tensor.numel() == 1))

    def held_at(self, frame: FrameType, site: Site) -> tuple[tuple[str, Ids], ...]:
        """Return the variables, where a block begins, whose graph leads to parameters without gradient."""
        if not self.missing or not self._recorder.looking or self._entries[site] >= _CUTS_PER_LINE:
            return ()
        self._entries[site] += 1
        graphs = [
            (name, value)
            for name, value in variables_of(frame)
            if isinstance(value, Tensor) and value.grad_fn is not None
        ]
        behind = ((name, self._behind(value)) for name, value in graphs)
        return tuple((name, ids) for name, ids in behind if ids & self.missing)

    def _behind(self, tensor: Tensor) -> Ids:
        if tensor.grad_fn is None:  # a parameter itself
            number = self._recorder.parameters.numbers.known(tensor)
            return self._recorder.parameters.same(() if number is None else (number,))
        numbers = map(self._number, Graph(tensor).leaves.values())
        return self._recorder.parameters.same(number for number in numbers if number is not None)

    def _number(self, leaf: Tensor) -> int | None:
        parameters = self._recorder.parameters
        if isinstance(leaf, nn.Parameter):
            return parameters.number(leaf)
        return parameters.numbers.known(leaf)

    def get_data(self, tensor: Tensor) -> Tensor:
        """Return a tensor's ``.data``."""
        if self._recorder.looking and self._recorder.active:
            self.cut(tensor, "data")
        data: Tensor = _DATA.__get__(tensor)
        return data
