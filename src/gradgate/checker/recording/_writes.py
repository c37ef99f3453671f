"""Record writes to parameters and gradients: in-place methods, assignments to ``.data``, and loaded states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gradgate.checker.recording._forward import TENSOR_DATA
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._measures import sample
from gradgate.checker.recording._patches import Around, tracing
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._registry import ByIdentity
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._user_objects import is_a, named_parameters, number_of, pairs_of
from gradgate.events import ModelLoaded, Site

WRITES = (
    *("add_", "sub_", "mul_", "div_", "copy_", "clamp_", "clamp_min_", "clamp_max_", "zero_", "fill_"),
    *("lerp_", "addcmul_", "addcdiv_", "normal_", "uniform_", "masked_fill_", "sign_", "round_", "renorm_"),
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__", "set_"),
)


_Before = tuple[Tensor, bool]
"""A sample of a parameter's values before a write, and whether the write covers the whole parameter."""


class Writes:
    """Watches in-place methods of tensors and ``.data``.

    Records writes to the memory of a known parameter or of its gradient. Ignores torch's own writes, in an
    optimizer's step or in ``zero_grad``.
    """

    def __init__(self, recorder: Recorder, gradients: Gradients, steps: Steps) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._steps = steps
        self._values: dict[int, int] = {}  # address of a parameter's values -> parameter number
        # (parameter number, method, line) -> values before and after the last such write
        self._last: dict[tuple[int, str, Site], tuple[Tensor, Tensor]] = {}
        # The last write: parameter number, steps so far, line, values before the write.
        self._row: tuple[int, int, Site, Tensor] | None = None

    def note(self) -> None:
        """Remember the address of each parameter."""
        self._values = {}
        if self._recorder.looking:
            for number, tensor in self._recorder.parameters.numbers.alive():
                address = _address(tensor)
                if address is not None:
                    self._values[address] = number

    def by_hand(self, *_: Any, **__: Any) -> bool:
        """Return whether to record a write now: only the user's own writes, and only during a close look."""
        recorder = self._recorder
        if not recorder.looking or not recorder.backwards or recorder.quiet:
            return False
        return not (recorder.thread.closures and self._steps.writes_itself())

    def called(self, name: str, tensor: Tensor, /, *args: Any, **_: Any) -> Around:
        """Record an in-place method of a parameter or gradient."""
        address = _address(tensor)
        number = None if address is None else self._values.get(address)
        if number is not None:
            write = self._begin(number, tensor.numel())
            yield
            self._record_value(number, name, write)
            return
        number = None if address is None else self._gradients.addresses.get(address)
        if number is None:
            return
        yield
        site = self._recorder.site()
        if site:
            self._recorder.wrote("gradient", number, site=site, op=name, factor=_factor(name, args))
            self._gradients.note((number,))

    def set_data(self, tensor: Tensor, value: Tensor) -> None:
        """Set ``tensor.data``, and record the write."""
        recorder = self._recorder
        number: int | None = None
        write: _Before | None = None
        if recorder.active and self.by_hand() and not tracing():
            with recorder.working():
                number = None if is_lazy(tensor) else recorder.parameters.numbers.known(tensor)
                # ``t.data -= x`` writes in place, then assigns the same memory. This counts as one write.
                if number is not None and _address(value) != _address(tensor):
                    write = self._begin(number, value.numel())
        TENSOR_DATA.__set__(tensor, value)
        if number is not None and write is not None:
            with recorder.working():
                self._record_value(number, "data", write)

    def _begin(self, number: int, size: int) -> _Before | None:
        tensor = self._recorder.parameters.numbers.get(number)
        return None if tensor is None else (sample(tensor), size >= tensor.numel())

    def _record_value(self, number: int, name: str, write: _Before | None) -> None:
        recorder = self._recorder
        site, tensor = recorder.site(), recorder.parameters.numbers.get(number)
        if not site or write is None or tensor is None:
            return
        (before, whole), now = write, sample(tensor)
        recorder.wrote(
            "value",
            number,
            site=site,
            op=name,
            whole=whole,
            restored=whole and (self._steps.was_left(number, now) or _unchanged(before, now)),
            same=whole and _unchanged(before, now, 1e-6),
            pulled=self._pulled((number, name, site), before, now) if whole else None,
        )

    def _pulled(self, key: tuple[int, str, Site], before: Tensor, now: Tensor) -> float | None:
        """Return how far a write moves values towards the last write's target (0 to 1), or None for another one."""
        number, _, site = key
        row, steps = self._row, self._recorder.steps
        if row is not None and row[:3] == (number, steps, site):
            before = row[3]  # in p.mul_(0.1).add_(q, alpha=0.9), two writes make one move
        self._row = number, steps, site, before
        last = self._last.get(key)
        self._last[key] = before, now
        if last is None or now.numel() < 8 or not now.dtype.is_floating_point:
            return None
        if not before.shape == now.shape == last[0].shape:
            return None
        given, left = (before - last[0]).double(), (now - last[1]).double()
        size = float(given @ given)
        kept = float(given @ left) / size if size else 1.0
        off = float((left - kept * given).norm())
        point = (now - kept * before).double()
        same_point = off < 1e-2 * float(left.norm()) and float(point.norm()) > 1e-3 * float(now.norm())
        return round(1 - kept, 3) if same_point and 1e-3 < kept < 0.999 else None


class Copies:
    """Watches ``state_dict()`` and ``load_state_dict()`` of modules.

    ``state_dict()`` returns tensors that share the parameters' memory. Each call returns new tensor objects, which
    tell when it was made.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # a tensor of a state_dict -> the line that called state_dict(), and the number of steps before
        self._taken: ByIdentity[Tensor, tuple[Site, int]] = ByIdentity()

    def is_outermost(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether ``state_dict`` was not called for a child of another module."""
        return len(args) == 1 and "destination" not in kwargs

    def taken(self, *_: Any, **__: Any) -> Around:
        """Remember when a state was taken."""
        state = yield
        recorder = self._recorder
        site, steps = recorder.site(), recorder.steps
        known = recorder.parameters.numbers.known
        for _, value in pairs_of(state) if site else ():
            if is_a(value, Tensor) and known(value) is None:
                self._taken.add(value, (site, steps))

    def loaded(self, module: Any, *args: Any, **kwargs: Any) -> Around:
        """Record that a module loads its own state, or values for parameters of a loss or an optimizer."""
        recorder = self._recorder
        state = pairs_of(args[0] if args else kwargs.get("state_dict"))
        given = {key: value for key, value in state if type(key) is str and is_a(value, Tensor)}
        pairs = [(each, given[name]) for name, each in named_parameters(module) if name in given]
        ids = recorder.parameters.known(each for each, _ in pairs)
        own = bool(pairs) and all(_address(each) == _address(value) != 0 for each, value in pairs)
        if not (ids or own) or kwargs.get("assign"):
            return
        site, steps = next(
            filter(None, (self._taken.known(value) for _, value in pairs)), ((), recorder.steps)
        )
        yield
        recorder.add(ModelLoaded(recorder.site(), ids, own, site, recorder.steps - steps))


def _unchanged(before: Tensor, now: Tensor, share: float = 1e-5) -> bool:
    """Return whether a write changed nothing, up to rounding."""
    alike = (before.shape, before.dtype, before.device) == (now.shape, now.dtype, now.device)
    return alike and before.dtype.is_floating_point and torch.allclose(before, now, rtol=share, atol=0.0)


def _address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's values, or None if it has none."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError):  # sparse, fake and uninitialized tensors have no address
        return None


def _factor(name: str, args: Any) -> float | None:
    """Return the factor by which a write scales a gradient; None for other writes."""
    if name == "zero_" or (name == "fill_" and args and args[0] == 0):
        return 0.0
    other: Any = args[0] if args else None
    if is_a(other, Tensor) and (other.numel() != 1 or other.device.type != "cpu"):
        return None
    factor = number_of(other)
    if name in ("mul_", "__imul__"):
        return factor
    return 1.0 / factor if name in ("div_", "__itruediv__") and factor else None
