"""A closer look at parameters that no gradient reaches, and at batch norms that should stand still."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from gradgate.events import Ran, StatisticsMoved
from gradgate.watcher._names import live_modules
from gradgate.watcher._recorder import Recorder

_RUNS = 4  # of a suspect that are recorded


class Suspects:
    """After the first steps: do the modules run whose parameters get no gradient, and how?

    A hook on a module would make torch.compile compile anew, so none is set once something is compiled.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hooked: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self._norms: list[tuple[weakref.ref[nn.Module], int]] | None = None
        self._looked_at = -1

    def look(self) -> None:
        """After a step: suspect what has no gradient so far, and see which statistics moved."""
        recorder = self._recorder
        if not recorder.looking:
            self.let_go()
            return
        sights = recorder.parameters.sights
        missing = {
            number
            for number in recorder.parameters.owned
            if number in sights and not sights[number].reached and sights[number].trainable
        }
        self._norm_statistics()
        if not missing or len(sights) == self._looked_at or recorder.steps > 3 * _RUNS:
            return
        self._looked_at = len(sights)
        if "torch._dynamo" in __import__("sys").modules and torch._dynamo.eval_frame.cached_backends:
            return
        for module in live_modules():
            own = module.__dict__.get("_parameters") or {}
            numbers = [recorder.parameters.numbers.known(one) for one in own.values() if one is not None]
            if module not in self._hooked and any(number in missing for number in numbers):
                self._hooked[module] = 0
                self._handles.append(module.register_forward_pre_hook(self._ran))

    def let_go(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _ran(self, module: nn.Module, inputs: Any) -> None:
        recorder = self._recorder
        count = self._hooked.get(module, _RUNS)
        if not recorder.active or count >= _RUNS:
            return
        self._hooked[module] = count + 1
        with recorder.working():
            ids = recorder.ids(module.parameters(recurse=False))
            recorder.add(Ran(recorder.site(), ids, torch.is_grad_enabled(), training=module.training))

    def _norm_statistics(self) -> None:
        """Record which batch norms moved their statistics although all their parameters are frozen."""
        recorder = self._recorder
        if self._norms is None or recorder.steps in (2, 8, 32):
            known = {ref() for ref, _ in self._norms or ()}
            fresh = [module for module in live_modules() if _tracks(module) and module not in known]
            self._norms = [*(self._norms or ()), *((weakref.ref(one), _version(one)) for one in fresh)]
        kept = []
        for ref, version in self._norms:
            module = ref()
            if module is None:
                continue
            now = _version(module)
            own = list(module.parameters(recurse=False))
            if now != version and own and not any(one.requires_grad for one in own):
                recorder.add(StatisticsMoved(recorder.site(), type(module).__name__, recorder.ids(own)))
            kept.append((ref, now))
        self._norms = kept


def _tracks(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.num_batches_tracked is not None


def _version(module: Any) -> int:
    return int(module.num_batches_tracked._version)
