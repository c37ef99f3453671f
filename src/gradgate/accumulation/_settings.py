"""The modules, optimizers and settings of an accumulator, checked once."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gradgate.errors import OptionError
from gradgate.options import check_choice

Nonfinite: TypeAlias = Literal["raise", "skip", "step"]


Model: TypeAlias = "nn.Module | Sequence[nn.Module]"
"""A module, wrapped or not, or several."""

in_use: weakref.WeakSet[Models] = weakref.WeakSet()
"""The models of all accumulators. A window may run another accumulator's network, which may all-reduce too."""

_WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DDP and torch.compile add to a path


class Models:
    """The modules of an accumulator, searched for wrappers, batch norms, buffers and parameter names.

    Only the given modules are searched. A search through the process would miss objects that ``gc.freeze()``
    hides, and find modules that belong to other code.

    Args:
        model: as passed by the caller; None if omitted.
        verb: the name of the public function, for messages.

    Attributes:
        given: the model as passed by the caller.
        roots: the modules themselves.

    Raises:
        OptionError: ``model`` holds anything other than modules.
    """

    def __init__(self, model: Model | None, verb: str) -> None:
        self._verb = verb
        self.given = model
        self.roots: tuple[nn.Module, ...] = ()
        self.replace(model)

    def replace(self, model: Model | None) -> None:
        """Replace the model, for example after it was wrapped again."""
        roots: tuple[Any, ...] = (
            () if model is None else (model,) if isinstance(model, nn.Module) else tuple(model)
        )
        for root in roots:
            if not isinstance(root, nn.Module):
                raise OptionError(
                    f"{self._verb}: model holds a {type(root).__name__}. Pass the module that the loop calls, "
                    "including a wrapper such as DistributedDataParallel, or several in a list: "
                    "model=[generator, head]."
                )
        self.given, self.roots = model, roots

    def __bool__(self) -> bool:
        return bool(self.roots)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter({id(module): module for root in self.roots for module in root.modules()}.values())

    def neighbours(self) -> list[nn.Module]:
        """Return the modules of all other accumulators, which may run in this accumulator's windows."""
        return [module for models in in_use if models is not self for module in models]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield every parameter of the modules; shared parameters are repeated."""
        return (parameter for root in self.roots for parameter in root.parameters())

    def check_shared(self, optimizers: Sequence[Optimizer]) -> None:
        """Raise OptionError if the modules have parameters, but none that the optimizers hold.

        One such module among others is fine, for example a teacher whose buffers are to be restored. So is a
        module without parameters, which may create them in its first forward pass.
        """
        held, parameters = set(map(id, owned_parameters(optimizers))), list(self.parameters())
        if held and parameters and held.isdisjoint(map(id, parameters)):
            kinds = " and ".join(type(root).__name__ for root in self.roots)
            holders = " and ".join(type(optimizer).__name__ for optimizer in optimizers)
            raise OptionError(
                f"{self._verb}: the {kinds} in model= has none of the parameters that the {holders} steps, so an "
                "update would not train it. Pass the model whose parameters the optimizer holds. If the model was "
                "copied, or passed to fully_shard, create the optimizer after that, from its new parameters."
            )

    def name(self, target: nn.Module | Tensor, optimizers: Iterable[Optimizer] = ()) -> str:
        """Return a module's class and path, or a parameter's path or its place in an optimizer, as text."""
        parameter = isinstance(target, Tensor)
        kind = "" if parameter else type(target).__name__
        for root in self.roots:
            for path, candidate in root.named_parameters() if parameter else root.named_modules():
                if candidate is target and path:
                    return f"{kind} '{self._label(root, path)}'".lstrip()
        return _place(target, optimizers) if isinstance(target, Tensor) else kind

    def _label(self, root: nn.Module, path: str) -> str:
        for prefix in _WRAPPERS:
            path = path.removeprefix(prefix)
        return path if len(self.roots) == 1 else f"{type(root).__name__}.{path}"


def owned_parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return every parameter of the optimizers, in the optimizers' order.

    Called again for each window, so that groups added later belong to the next window.
    """
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def _place(parameter: Tensor, optimizers: Iterable[Optimizer]) -> str:
    """Return a parameter's name in an optimizer, or its index there if the optimizer keeps no names."""
    shape = f"shape {list(parameter.shape)}"
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for index, candidate in enumerate(group["params"]):
                if candidate is parameter:
                    names = group.get("param_names")
                    place = f"parameter {index} of group {number} ({type(optimizer).__name__}, {shape})"
                    return place if names is None else f"'{names[index]}'"
    return f"a tensor of {shape}"


@dataclass(frozen=True)
class Decay:
    """Carry ``factor`` times the last gradient into the next update. Made by :func:`decay`."""

    factor: float


Clear: TypeAlias = Literal["none", "zero"] | Decay


def decay(factor: float) -> Decay:
    """Decay gradients after a step instead of clearing them.

    The next update's gradient is then the new mean plus ``factor`` times the last gradient, as the optimizer
    received it. The carried part is not divided again. This acts like momentum outside the optimizer: a constant
    gradient ``g`` grows towards ``g / (1 - factor)``.

    Args:
        factor: at least 0 (the same as clearing) and below 1 (at 1, gradients would grow forever).

    Raises:
        OptionError: ``factor`` is not in ``[0, 1)``.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> accumulator = Accumulator(optimizer, clear=decay(0.5))
        >>> for _ in range(3):
        ...     with accumulator.update() as update:
        ...         update.backward(weight.sum(), count=1)
        ...     print(update.grad_norm)
        1.0
        1.5
        1.75
    """
    if not 0 <= factor < 1:
        raise OptionError(
            f"decay: factor is {factor}, but it must be at least 0 and below 1, or gradients would grow forever. "
            "Use clear='none' to drop gradients after a step."
        )
    return Decay(float(factor))


@dataclass(frozen=True)
class UpdateSettings:
    """The settings for the end of each window.

    Raises:
        OptionError: an option cannot be used.
    """

    optimizers: tuple[Optimizer, ...]
    models: Models
    scaler: GradScaler | None
    clip_norm: float | None
    clip_value: float | None
    nonfinite: Nonfinite | None
    undo_step: bool
    schedulers: tuple[Any, ...]
    clear: Clear
    prepared: tuple[Any, ...] = ()  # the optimizers that Accelerate has wrapped

    def __post_init__(self) -> None:
        if self.scaler is not None and not self.scaler.is_enabled():
            object.__setattr__(self, "scaler", None)
        if self.nonfinite is None:
            # With a scaler, an overflow is normal: it shows that the scale is too large.
            object.__setattr__(self, "nonfinite", "raise" if self.scaler is None else "skip")
        for name, limit in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            number = limit is None or isinstance(limit, (Real, Tensor))
            if not number or (limit is not None and not 0 < limit < math.inf):
                raise OptionError(
                    f"Accumulator: {name} is {limit!r}, but it must be a positive, finite number, such as 1.0. To "
                    "disable clipping, leave it out."
                )
        if self.clip_norm is not None and self.clip_value is not None:
            raise OptionError(
                f"Accumulator: both clip_norm={self.clip_norm} and clip_value={self.clip_value} are given; a "
                "gradient is clipped once. Choose clip_norm, which keeps the direction, or clip_value."
            )
        check_choice("Accumulator", "nonfinite", self.nonfinite, ("raise", "skip", "step"))
        if self.nonfinite == "step" and self.scaler is not None:
            raise OptionError(
                "Accumulator: nonfinite='step' does not work with a GradScaler, because the scaler never steps on "
                "an overflow. Use nonfinite='skip', or leave the scaler out."
            )
        if not isinstance(self.clear, Decay):
            check_choice("Accumulator", "clear", self.clear, ("none", "zero"), "gradgate.decay(factor)")

        prepared = tuple(
            each for each in self.optimizers if getattr(each, "gradient_state", None) is not None
        )
        object.__setattr__(self, "prepared", prepared)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that the optimizers currently hold."""
        return owned_parameters(self.optimizers)

    def names(self, parameters: Sequence[Tensor], most: int = 3) -> str:
        """Return the names of a few parameters, and the number of other parameters, as text."""
        names = ", ".join(self.models.name(parameter, self.optimizers) for parameter in parameters[:most])
        rest = len(parameters) - most
        return f"{names} and {rest} more" if rest > 0 else names


def as_optimizers(optimizer: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """Return the optimizers as a tuple; raise for one that cannot be stepped once per window."""
    optimizers = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
    if not optimizers:
        raise OptionError(
            "Accumulator: no optimizer was given, so there is nothing to update. Pass at least one."
        )
    for each in optimizers:
        if not hasattr(each, "param_groups") or not callable(getattr(each, "step", None)):
            raise OptionError(
                f"Accumulator: {type(each).__name__} is not an optimizer (it has no param_groups and step). "
                "Pass a torch.optim optimizer, or a sequence of them."
            )
        if _needs_closure(each):
            raise OptionError(
                f"Accumulator: {type(each).__name__} evaluates the loss several times per step through a "
                "closure, but a window runs once. Use it without gradgate, with a closure that runs the whole "
                "batch (or all micro-batches, each weighted by its count), or use an optimizer that needs no "
                "closure."
            )
    return optimizers


def _needs_closure(optimizer: Optimizer) -> bool:
    if isinstance(optimizer, torch.optim.LBFGS):
        return True
    # `Optimizer.__init__` wraps the class's step; the wrapper keeps the signature.
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def as_schedulers(scheduler: Any, optimizers: Sequence[Optimizer]) -> tuple[Any, ...]:
    """Return the schedulers as a tuple; raise for one that cannot be stepped once per update."""
    if scheduler is None:
        return ()
    schedulers = tuple(scheduler) if isinstance(scheduler, Sequence) else (scheduler,)
    for each in schedulers:
        if isinstance(each, ReduceLROnPlateau):
            raise OptionError(
                "Accumulator: ReduceLROnPlateau steps on a validation result, not on an update. Leave it out "
                "here and call scheduler.step(metric) after each validation."
            )
        if not callable(getattr(each, "step", None)):
            raise OptionError(
                f"Accumulator: {type(each).__name__} is not a learning-rate scheduler (it has no step). Pass a "
                "scheduler from torch.optim.lr_scheduler, or a list of them."
            )
        other = _scheduled(each)
        if other is not None and not _share_groups(other, optimizers):
            raise OptionError(
                f"Accumulator: the {type(each).__name__} in scheduler= sets the learning rates of another "
                f"optimizer ({type(other).__name__}), not those of optimizer=. Create it from the optimizer that "
                "the accumulator steps, or pass both optimizers: Accumulator([first, second], scheduler=...)."
            )
    return schedulers


def _scheduled(scheduler: Any) -> Any:
    """Return the optimizer whose groups a scheduler changes, or None if the scheduler does not show it."""
    inner = getattr(scheduler, "scheduler", scheduler)  # Accelerate wraps schedulers
    return getattr(inner, "optimizer", None)


def _share_groups(other: Any, optimizers: Sequence[Optimizer]) -> bool:
    """Return whether an optimizer has a group of these optimizers, which a wrapper shares with what it wraps."""
    groups = {id(group) for optimizer in optimizers for group in optimizer.param_groups}
    theirs = getattr(other, "param_groups", None)
    return not isinstance(theirs, list) or any(id(group) in groups for group in theirs)
