"""A closer look at parameters that no gradient reaches, and at batch norms that should stand still."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from gradgate.checker.recording._forward import Cuts
from gradgate.checker.recording._modules import children_of, own_buffers, own_parameters
from gradgate.checker.recording._patches import Patches, tracing
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import Numbers, is_sharded
from gradgate.checker.recording._samples import sample
from gradgate.events import Ran, StatisticsMoved
from gradgate.torch_compat import anything_compiled, tensor_version

_RUNS = 4  # of a suspect that are recorded
_MOST_OTHERS = 512  # parameters of no optimizer whose values are compared


class Suspects:
    """After the first steps: do the modules run whose parameters get no gradient, and how?

    And is what they give handed to a module that runs without a graph, which cuts them off?

    A hook on a module would be saved and copied with it, so it is the class's forward that is stood around. That
    would make torch.compile compile anew: once something is compiled, nothing is done.
    """

    def __init__(self, recorder: Recorder, cuts: Cuts) -> None:
        self._recorder = recorder
        self._cuts = cuts
        self._hooked: Numbers[nn.Module] = Numbers()
        self._runs: dict[int, int] = {}
        self._patches = Patches()
        self._classes: set[type[nn.Module]] = set()
        self._norms: list[tuple[weakref.ref[nn.Module], int]] | None = None
        self._looked_at = -1
        self._values: dict[int, torch.Tensor] = {}  # samples of parameters that no optimizer holds

    def look(self) -> None:
        """After a step: suspect what has no gradient so far, and see which statistics moved."""
        recorder = self._recorder
        if not recorder.looking:
            self.let_go()
            return
        records = recorder.parameters.records
        missing = {
            number
            for number in recorder.parameters.owned
            if number in records and not records[number].reached and records[number].trainable
        }
        self._norm_statistics()
        self.who_moves()
        if not missing or len(records) == self._looked_at or recorder.steps > 3 * _RUNS:
            return
        self._looked_at = len(records)
        self._cuts.missing = missing
        if anything_compiled():
            return
        for module in recorder.modules.alive():
            own = own_parameters(module)
            numbers = [recorder.parameters.numbers.known(one) for one in own]
            suspect = any(number in missing for number in numbers)
            if suspect and self._hooked.known(module) is None:
                self._runs[self._hooked.number(module)] = 0
            reached = any(
                number in records and records[number].reached for number in numbers if number is not None
            )
            computes = bool(own) or children_of(module)
            if suspect or (computes and not reached):
                self._stand_around(type(module))

    def _stand_around(self, kind: type[nn.Module]) -> None:
        # A module that was compiled has no plain function there.
        if kind not in self._classes and isinstance(
            inspect.getattr_static(kind, "forward"), types.FunctionType
        ):
            self._classes.add(kind)
            original = kind.forward
            self._patches.replace(kind, "forward", _standing_around(original, self._around_forward))

    def let_go(self) -> None:
        """Give the classes their own forward back."""
        self._patches.undo()
        self._classes.clear()

    def _around_forward(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not tracing():
            self._ran(module)
            if not torch.is_grad_enabled() and self._recorder.active:
                for given in (*args, *kwargs.values()):
                    for one in given if isinstance(given, (list, tuple)) else (given,):
                        if isinstance(one, Tensor):
                            self._cuts.cut(one, "no_grad")
        return original(module, *args, **kwargs)

    def _ran(self, module: nn.Module) -> None:
        recorder = self._recorder
        if not recorder.active:
            return
        with recorder.working():
            number = self._hooked.known(module)
            if number is None or self._runs[number] >= _RUNS:
                return
            self._runs[number] += 1
            ids = recorder.ids(module.parameters(recurse=False))
            recorder.add(Ran(recorder.site(), ids, torch.is_grad_enabled(), training=module.training))

    def _norm_statistics(self) -> None:
        """Record which batch norms moved their statistics although all their parameters are frozen."""
        recorder = self._recorder
        if self._norms is None or recorder.steps in (2, 8, 32):
            known = {id(ref()) for ref, _ in self._norms or ()}
            fresh = [
                module for module in recorder.modules.alive() if _tracks(module) and id(module) not in known
            ]
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

    def who_moves(self) -> None:
        """See whether parameters change that no optimizer steps: an average, a copy, an update by hand."""
        parameters = self._recorder.parameters
        others = [
            (number, tensor)
            for number, tensor in parameters.numbers.alive()
            if (number not in parameters.owned or not tensor.requires_grad) and not is_sharded(tensor)
        ]
        for number, tensor in others[:_MOST_OTHERS]:
            if not parameters.records[number].still:
                self._values.pop(number, None)
                continue
            now = sample(tensor)
            before = self._values.setdefault(number, now)
            parameters.records[number].still = before.shape == now.shape and torch.equal(before, now)


def _standing_around(original: Any, around: Any) -> Any:
    """Return ``around(original, *arguments)`` as a function that finds the original's globals.

    torch.jit reads the source of a method, and looks up in these what stands there.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    at_home = types.FunctionType(
        wrapper.__code__, original.__globals__, original.__name__, None, wrapper.__closure__
    )
    return functools.wraps(original)(at_home)


def _tracks(module: nn.Module) -> bool:
    return isinstance(own_buffers(module).get("num_batches_tracked"), Tensor)


def _version(module: Any) -> int:
    return tensor_version(module.num_batches_tracked)
