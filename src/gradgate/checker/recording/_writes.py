"""In-place writes to parameters and gradients, and ``.data`` that is set."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gradgate.checker.recording._backward import Backwards
from gradgate.checker.recording._cuts import Cuts
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._samples import same, sample
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._tracing import tracing
from gradgate.events import Site
from gradgate.torch_compat import node_number

_WRITES = (
    *("add_", "sub_", "mul_", "div_", "copy_", "clamp_", "clamp_min_", "clamp_max_", "zero_", "fill_"),
    *("lerp_", "addcmul_", "addcdiv_", "normal_", "uniform_", "masked_fill_", "sign_", "round_", "renorm_"),
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__", "set_"),
)
_DATA: Any = inspect.getattr_static(Tensor, "data")


@dataclass(frozen=True)
class _Write:
    """A parameter before it is written by hand."""

    before: Tensor  # a sample of its values
    along: bool  # it is about to be moved down its gradient
    whole: bool  # all of it is written


class Writes:
    """Watches in-place methods of tensors and ``.data``.

    A write counts where the memory that is written is a known parameter's or its gradient's, and where it is not
    torch itself that writes, in an optimizer's step or in zero_grad.
    """

    def __init__(
        self,
        recorder: Recorder,
        gradients: Gradients,
        steps: Steps,
        backwards: Backwards,
        cuts: Cuts,
    ) -> None:
        self._recorder = recorder
        self._cuts = cuts
        self._gradients = gradients
        self._steps = steps
        self._backwards = backwards
        self._values: dict[int, int] = {}  # address of a parameter's values: its number
        # What a method's last write at a line found in a parameter, and left.
        self._pulls: dict[tuple[int, str, Site], tuple[Tensor, Tensor]] = {}
        self._row: tuple[int, int, Site, Tensor] | None = None  # writes of one line: parameter, steps, before
        self._ratios: dict[Site, float] = {}  # of a number's last move to its gradient

    def install(self) -> None:
        """Replace the methods on torch.Tensor, which inherits them."""
        patches = self._recorder.patches
        for name in _WRITES:
            patches.replace(Tensor, name, self._writing(getattr(Tensor, name), name))
        patches.replace(Tensor, "data", property(self._cuts.get_data, self._set_data))

    def note(self) -> None:
        """Learn where the parameters' values lie."""
        self._values = {}
        if self._recorder.looking:
            for number, tensor in self._recorder.parameters.numbers.alive():
                address = _address(tensor)
                if address is not None:
                    self._values[address] = number

    def _writing(self, original: Any, name: str) -> Any:
        recorder = self._recorder

        @functools.wraps(original)
        def wrapper(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not recorder.looking or recorder.quiet or not recorder.active or not recorder.backwards:
                return original(tensor, *args, **kwargs)
            if tracing() or (recorder.closures and self._steps.writes_itself()):
                return original(tensor, *args, **kwargs)
            owner: tuple[str, int] | None = None
            write: _Write | None = None
            with recorder.working():
                owner = self._owner(tensor)
                if owner is not None and owner[0] == "value":
                    write = self._begin(owner[1], name, args, kwargs, tensor.numel())
            result = original(tensor, *args, **kwargs)
            if owner is not None:
                with recorder.working():
                    self._record(owner, name, args, write)
            return result

        return wrapper

    def _owner(self, tensor: Tensor) -> tuple[str, int] | None:
        address = _address(tensor)
        if address is None:
            return None
        number = self._values.get(address)
        if number is not None:
            return "value", number
        number = self._gradients.addresses.get(address)
        return None if number is None else ("gradient", number)

    def _begin(self, number: int, name: str, args: Any, kwargs: Any, size: int) -> _Write | None:
        """Look at a parameter before its values are written."""
        tensor = self._recorder.parameters.numbers.get(number)
        if tensor is None:
            return None
        alpha = kwargs.get("alpha", 1)
        along = self._along(tensor, name, args, float(alpha) if isinstance(alpha, (int, float)) else 1.0)
        return _Write(sample(tensor), along, size >= tensor.numel())

    def _record(self, owner: tuple[str, int], name: str, args: Any, write: _Write | None) -> None:
        recorder = self._recorder
        target, number = owner
        site = recorder.site()
        if not site:
            return
        if target == "gradient":
            recorder.wrote("gradient", number, site=site, op=name, factor=_factor(name, args))
            self._gradients.note((number,))
            return
        tensor = recorder.parameters.numbers.get(number)
        if write is None or tensor is None:
            return
        now = sample(tensor)
        if not same(now, write.before):
            self._backwards.reach.written[number] = (_newest_node(), site)
        recorder.wrote(
            "value",
            number,
            site=site,
            op=name,
            along_gradient=write.along,
            undoes=write.whole and self._undoes(number, write.before, now),
            whole=write.whole,
            restored=write.whole and self._steps.was_left(number, now),
            pulled=self._pulled((number, name, site), write.before, now) if write.whole else None,
        )

    def _along(self, tensor: Tensor, name: str, args: Any, alpha: float) -> bool:
        """Say whether a parameter is moved by a negative multiple of its gradient."""
        grad = tensor.grad
        if name not in ("add_", "sub_", "__iadd__", "__isub__", "copy_", "data") or grad is None or not args:
            return False
        with torch.no_grad():
            moved = args[0]
            if not isinstance(moved, Tensor) or moved.shape != grad.shape or grad.is_sparse:
                return False
            if name in ("copy_", "data"):
                moved = moved - tensor
            elif name in ("sub_", "__isub__"):
                alpha = -alpha
            one, other = moved.detach().double().reshape(-1), grad.detach().double().reshape(-1)
            product, sizes = alpha * float(one @ other), abs(alpha) * float(one.norm() * other.norm())
            if tensor.numel() < 2:  # two numbers always point along each other, or against
                return sizes > 0 and self._at_one_rate(product / float(other @ other))
            return sizes > 0 and product < -(1 - 1e-6) * sizes

    def _at_one_rate(self, ratio: float) -> bool:
        """Say whether a number is moved at the rate at which this line moved the last one."""
        site = self._recorder.site()
        last = self._ratios.get(site)
        self._ratios[site] = ratio
        return last is not None and ratio < 0 and abs(ratio - last) < 1e-4 * abs(ratio)

    def _undoes(self, number: int, stepped: Tensor, now: Tensor) -> bool:
        """Say whether a write puts values on a coarse grid, and takes back most of what the last step has done so.

        Values at zero or at the ends of their range do not count: a pruning mask and a limit hold them there.
        """
        before = self._steps.before.get(number)
        if before is None or not before.shape == now.shape == stepped.shape or now.numel() < 16:
            return False
        if 4 * now.unique().numel() > now.numel():
            return False
        inner = (now != 0) & (now != now.amax()) & (now != now.amin()) & (stepped != before)
        step, kept = (stepped - before)[inner].double(), (now - before)[inner].double()
        return step.numel() > 0 and bool(step @ kept < 0.5 * (step @ step))

    def _pulled(self, key: tuple[int, str, Site], before: Tensor, now: Tensor) -> float | None:
        """Return how far values are moved to one and the same point, if this write and the last one do that."""
        number, _, site = key
        row, steps = self._row, self._recorder.steps
        if row is not None and row[:3] == (number, steps, site):
            before = row[3]  # p.mul_(0.1).add_(q, alpha=0.9): the two together move it
        self._row = number, steps, site, before
        last = self._pulls.get(key)
        self._pulls[key] = before, now
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
        return round(1 - kept, 2) if same_point and 1e-3 < kept < 0.999 else None

    def _set_data(self, tensor: Tensor, value: Tensor) -> None:
        recorder = self._recorder
        watched = recorder.looking and recorder.active and recorder.backwards and not recorder.quiet
        watched = watched and not (recorder.closures and self._steps.writes_itself())
        number = recorder.parameters.numbers.known(tensor) if watched else None
        if number is None or tracing() or is_lazy(tensor):
            _DATA.__set__(tensor, value)
            return
        write: _Write | None = None
        with recorder.working():
            # ``t.data -= x`` writes in place first and then assigns the very same memory: that is one write.
            if _address(value) != _address(tensor):
                write = self._begin(number, "data", (value,), {}, value.numel())
        _DATA.__set__(tensor, value)
        if write is not None:
            with recorder.working():
                self._record(("value", number), "data", (value,), write)


def _address(tensor: Tensor) -> int | None:
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError):  # sparse and fake tensors have none, nor what is not initialised
        return None


def _factor(name: str, args: Any) -> float | None:
    """Return the number that a gradient was multiplied by, where it was one."""
    if name == "zero_":
        return 0.0
    if not args:
        return None
    other = args[0]
    if isinstance(other, Tensor):
        other = float(other) if other.numel() == 1 and other.device.type == "cpu" else None
    if not isinstance(other, (int, float)):
        return None
    if name in ("mul_", "__imul__"):
        return float(other)
    if name in ("div_", "__itruediv__") and other:
        return 1.0 / other
    if name in ("fill_", "__setitem__") and other == 0 and name == "fill_":
        return 0.0
    return None


def _newest_node() -> int:
    """Return the number that autograd gave to the newest node, by making one more."""
    with torch.enable_grad():
        node: Any = torch.zeros((), requires_grad=True).view_as(torch.zeros(())).grad_fn
    return node_number(node)
