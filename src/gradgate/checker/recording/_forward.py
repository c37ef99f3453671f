"""Watch the forward pass: ``no_grad`` blocks and the training mode."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.call_sites import kind_of
from gradgate.checker.recording._patches import Around, caller
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._user_objects import (
    fields_of,
    is_a,
    modules_in,
    number_of,
    own_buffers,
    parameters_in,
)
from gradgate.events import Frame, ModeSet, NoGradEntered, Site

TENSOR_DATA: Any = inspect.getattr_static(Tensor, "data")
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# The file in which @torch.no_grad() calls the decorated function.
_DECORATOR_FILE = torch.no_grad()(lambda: None).__code__.co_filename


class NoGrad:
    """Watches ``no_grad`` and ``inference_mode``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def entered(self, context: Any) -> None:
        """Record that the user's code turns gradients off."""
        frame = caller()
        if frame.f_code.co_filename == _DECORATOR_FILE and frame.f_back is not None:
            frame = frame.f_back
        site = self._recorder.site() if kind_of(frame.f_code.co_filename) == "user" else ()
        if site:
            self._recorder.add(NoGradEntered(site))
        self._recorder.values.turned_off(context, decorated(site) if site else ())

    def left(self, context: Any, *_: Any, **__: Any) -> None:
        """Record that gradients are on again."""
        self._recorder.values.turned_on(context)


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
