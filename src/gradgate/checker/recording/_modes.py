"""Training and evaluation mode, and blocks without gradients."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from gradgate.call_sites import kind_of
from gradgate.checker.recording._cuts import Cuts
from gradgate.checker.recording._modules import own_buffers
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._tracing import tracing
from gradgate.events import ModeSet, NoGradEntered

_DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    nn.RReLU,
)
_DECORATOR_FILE = torch.no_grad()(lambda: None).__code__.co_filename  # where @torch.no_grad() runs a function


class Modes:
    """Watches Module.train (which eval calls) and the context managers that stop recording."""

    def __init__(self, recorder: Recorder, cuts: Cuts) -> None:
        self._recorder = recorder
        self._cuts = cuts
        self._depth = 0
        self._modal: dict[type, bool] = {}

    def install(self) -> None:
        """Stand around the class's methods."""
        patches = self._recorder.patches
        patches.wrap(nn.Module, "train", self._around_train)
        patches.wrap(torch.no_grad, "__enter__", self._around_enter)
        patches.wrap(torch.inference_mode, "__enter__", self._around_enter)

    def _around_train(self, original: Any, module: Any, mode: bool = True) -> Any:
        self._depth += 1  # it calls itself for each child
        try:
            result = original(module, mode)
        finally:
            self._depth -= 1
        recorder = self._recorder
        if recorder.active and not self._depth and not recorder.quiet and (mode or _by_user()):
            with recorder.working():
                ids = recorder.ids(module.parameters())
                name = type(module).__name__
                depends = any(self._depends(inner) for inner in module.modules())
                recorder.add(ModeSet(recorder.site(), name, bool(mode), ids, depends))
        return result

    def _depends(self, module: nn.Module) -> bool:
        """Say whether a module behaves differently in training."""
        if isinstance(module, _DROPOUTS):
            return getattr(module, "p", 1.0) > 0
        if "num_batches_tracked" in own_buffers(module):  # of a batch norm, whoever has made its class
            return True
        if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            return module.dropout > 0
        kind = type(module)
        if kind not in self._modal:
            self._modal[kind] = _asks_for_its_mode(kind)
        return self._modal[kind]

    def _around_enter(self, original: Any, context: Any) -> Any:
        recorder = self._recorder
        result = original(context)
        if recorder.active and not recorder.quiet and not tracing():
            caller = sys._getframe(2)
            if caller.f_code.co_filename == _DECORATOR_FILE and caller.f_back is not None:
                caller = caller.f_back
            if kind_of(caller.f_code.co_filename) == "user":
                with recorder.working():
                    site = recorder.site()
                    recorder.add(NoGradEntered(site, self._cuts.held_at(caller, site)))
        return result


def _by_user() -> bool:
    """Say whether the user's code calls: a trainer that evaluates puts the flags back by hand."""
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename == nn.modules.module.__file__:
        frame = frame.f_back
    return kind_of(frame.f_code.co_filename) == "user"


def _asks_for_its_mode(kind: type) -> bool:
    """Say whether the forward of a class of the user's own reads ``self.training``."""
    forward = getattr(kind, "forward", None)
    code = getattr(forward, "__code__", None)
    if forward is None or code is None or kind_of(code.co_filename) != "user":
        return False
    try:
        return "self.training" in inspect.getsource(forward)
    except (OSError, TypeError):
        return False
