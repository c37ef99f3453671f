"""Watch the forward pass: values that leave the graph, ``no_grad`` blocks, training mode."""

from __future__ import annotations

import inspect
from collections import Counter
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.autograd_graph import Graph
from gradgate.call_sites import kind_of
from gradgate.checker.recording._names import variables_of
from gradgate.checker.recording._patches import Around, caller, tracing
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._user_objects import (
    fields_of,
    is_a,
    modules_in,
    number_of,
    own_buffers,
    parameters_in,
)
from gradgate.events import Cut, Frame, Ids, ModeSet, NoGradEntered, Site, is_on_purpose
from gradgate.torch_compat import as_torch_itself

CUTS = ("detach", "detach_", "item", "numpy", "tolist", "argmax", "argmin")
_EVENTS_PER_LINE = 3
TENSOR_DATA: Any = inspect.getattr_static(Tensor, "data")
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# The file in which @torch.no_grad() calls the decorated function.
_DECORATOR_FILE = torch.no_grad()(lambda: None).__code__.co_filename


class Cuts:
    """Watches ``no_grad``, and the tensor methods whose result has no graph."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._cuts: Counter[Site] = Counter()
        self._entries: Counter[Site] = Counter()
        # Parameters that had no gradient up to the last step that was examined.
        self.missing: set[int] = set()

    def is_cut(self, tensor: Tensor, *_: Any, **__: Any) -> bool:
        """Return whether reading this tensor's value may cut a graph."""
        recorder = self._recorder
        if not recorder.looking or recorder.quiet or recorder.in_backward or is_on_purpose():
            return False
        with as_torch_itself():
            return tensor.requires_grad and not is_lazy(tensor)

    def cut(self, tensor: Tensor, name: str) -> None:
        """Record that a tensor's value leaves the graph, if this may cut a graph."""
        if self._recorder.active and self.is_cut(tensor) and not tracing():
            with self._recorder.working():
                self.record(tensor, name)

    def record(self, tensor: Tensor, name: str) -> None:
        """Record that a tensor's value left the graph, a few times per line.

        Leaving the graph under ``no_grad`` is usually intended. It is recorded only if the tensor depends on a
        parameter that gets no gradient.
        """
        site = self._recorder.site()
        self._cuts[site] += 1
        if not site or self._cuts[site] > _EVENTS_PER_LINE:
            return
        ids = self._behind(tensor)
        if ids and (name != "no_grad" or ids & self.missing):
            self._recorder.add(Cut(site, name, ids, tensor.numel() == 1))

    def called(self, name: str, tensor: Tensor, /, *_: Any, **__: Any) -> None:
        """Record the call of a method that cuts the graph. Ignore gradgate's own calls."""
        if kind_of(caller().f_code.co_filename) != "ours":
            self.record(tensor, name)

    def get_data(self, tensor: Tensor) -> Tensor:
        """Return ``tensor.data``, and record that the value leaves the graph."""
        self.cut(tensor, "data")
        data: Tensor = TENSOR_DATA.__get__(tensor)
        return data

    def no_grad(self) -> Site:
        """Record that the user's code enters a ``no_grad`` or ``inference_mode`` block. Return the line."""
        frame = caller()
        if frame.f_code.co_filename == _DECORATOR_FILE and frame.f_back is not None:
            frame = frame.f_back
        if kind_of(frame.f_code.co_filename) == "user":
            site = self._recorder.site()
            self._recorder.add(NoGradEntered(site, self._held_at(frame, site)))
            return site
        return ()

    def _held_at(self, frame: FrameType, site: Site) -> tuple[tuple[str, Ids], ...]:
        """Return the local tensors whose graph leads to parameters without a gradient."""
        if not self.missing or not self._recorder.looking or self._entries[site] >= _EVENTS_PER_LINE:
            return ()
        self._entries[site] += 1
        tensors = (
            pair
            for pair in list(variables_of(frame))
            if is_a(pair[1], Tensor) and pair[1].grad_fn is not None
        )
        behind = ((name, self._behind(value)) for name, value in tensors)
        return tuple((name, ids) for name, ids in behind if ids & self.missing)

    def _behind(self, tensor: Tensor) -> Ids:
        """Return the parameters that a tensor was computed from."""
        parameters = self._recorder.parameters
        if tensor.grad_fn is None:
            return parameters.known([tensor])
        return parameters.same(
            parameters.number(leaf) if isinstance(leaf, nn.Parameter) else parameters.numbers.known(leaf)
            for leaf in Graph(tensor).leaves.values()
        )


def decorated(site: Site) -> Site:
    """Return the line of ``@torch.no_grad()``, if a call of a decorated function enters the block."""
    frame = caller()
    function = frame.f_locals.get("func") if frame.f_code.co_filename == _DECORATOR_FILE else None
    if not is_a(function, FunctionType):
        return site
    code = function.__code__  # type: ignore[union-attr]
    return (Frame(site[0].file, code.co_firstlineno, code.co_name), *site)


class Modes:
    """Watches ``Module.train``, which ``eval`` calls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._mode_matters: dict[type, bool] = {}
        self._evaluated: dict[
            type, Site
        ] = {}  # class -> where one of its modules was last put into evaluation mode

    def is_outermost(self, *_: Any, **__: Any) -> bool:
        """Return whether this is the user's call of ``train``, not a recursive call for a child."""
        return not self._recorder.thread.setting_mode

    def set(self, module: Any, mode: bool = True) -> Around:
        """Record a module's new mode."""
        thread = self._recorder.thread
        thread.setting_mode = True
        try:
            yield
        finally:
            thread.setting_mode = False
        if mode or _by_user():
            depends = any(map(self._depends, modules_in(module)))
            ids = self._recorder.parameters.ids(parameters_in(module))
            site = self._recorder.site()
            self._recorder.add(ModeSet(site, bool(mode), ids, depends))
            if depends and not mode:
                self._evaluated[type(module)] = site

    def copied(self, module: Any, *_: Any, **__: Any) -> Around:
        """Record that a copied module is in evaluation mode, because ``copy.deepcopy`` copies the mode."""
        yield
        site = self._evaluated.get(type(module))
        if site is not None and fields_of(module).get("training") is False:
            ids = self._recorder.parameters.ids(parameters_in(module))
            self._recorder.add(ModeSet(site, False, ids, True, copied=True))

    def _depends(self, module: nn.Module) -> bool:
        """Return whether a module behaves differently in training and in evaluation."""
        fields = fields_of(module)
        if is_a(module, *_DROPOUTS, nn.RReLU):
            return number_of(fields.get("p")) != 0
        if "num_batches_tracked" in own_buffers(module):  # any kind of batch norm
            return True
        if is_a(module, nn.RNNBase, nn.MultiheadAttention):
            return number_of(fields.get("dropout")) != 0
        kind = type(module)
        if kind not in self._mode_matters:
            self._mode_matters[kind] = _reads_mode(kind)
        return self._mode_matters[kind]


def _by_user() -> bool:
    """Return whether the user's code sets the mode. A trainer restores the mode after its own evaluation."""
    frame = caller()
    while frame.f_back is not None and frame.f_code.co_filename == nn.modules.module.__file__:
        frame = frame.f_back
    return kind_of(frame.f_code.co_filename) == "user"


def _reads_mode(kind: type) -> bool:
    """Return whether a user's class reads ``self.training`` in its forward method."""
    forward = inspect.getattr_static(kind, "forward", None)
    if type(forward) is not FunctionType or kind_of(forward.__code__.co_filename) != "user":
        return False
    try:
        return "self.training" in inspect.getsource(forward)
    except (OSError, TypeError):
        return False
