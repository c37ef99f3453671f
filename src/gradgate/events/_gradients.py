"""What happens to gradients and values: made, cleared, clipped, written, used by a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradgate.events._places import Event, Group, Ids, Site, Term


@dataclass(frozen=True, slots=True)
class OptimizerMade(Event):
    """An optimizer was constructed, or was given a further group."""

    optimizer: int
    kind: str
    groups: tuple[Group, ...]
    twice: Ids = frozenset()  # listed more than once
    added: bool = False  # by add_param_group, later


@dataclass(frozen=True, slots=True)
class StateLoaded(Event):
    """``load_state_dict`` replaced an optimizer's state."""

    optimizer: int
    before: int  # parameters with state before
    after: int


@dataclass(frozen=True, slots=True)
class Backward(Event):
    """A loss was back-propagated into ``.grad``."""

    reached: Ids  # parameters that gradient was added to
    seen: bool = True  # False: not looked at; `reached` is what the last look at this line showed
    terms: tuple[Term, ...] = ()
    others: int = 0  # leaves reached that are no parameters (an input that requires a gradient)
    nodes: int = 0
    old_nodes: int = 0  # nodes made before the last step: the graph reaches back
    old_site: Site = ()  # where most of those were made
    retain: bool = False
    create: bool = False
    closure: bool = False  # called by an optimizer's step
    scaler: int | None = None  # a gradient scaler scaled the loss, or part of it
    synced: bool | None = None  # did DDP synchronise? None: no DDP
    uses: tuple[
        tuple[int, Site], ...
    ] = ()  # (parameter, first use), in order of last use; only the first time
    through: tuple[tuple[int, Site], ...] = ()  # (parameter, where it was used), of those in no optimizer
    beyond: Ids = (
        frozenset()
    )  # of those in no optimizer: used on what was computed from others that are in one
    stale: tuple[tuple[int, Site], ...] = ()  # (parameter, write) whose value changed since the forward
    value: float | None = None  # of the loss, where reading it waits for nothing
    managed: bool = False  # by gradgate's own accumulator, which divides by what the window holds; no terms


@dataclass(frozen=True, slots=True)
class Opposed(Event):
    """What a backward call added to gradients points against what stood there."""

    cosines: tuple[tuple[int, float], ...]  # (parameter, cosine between the two), of some


@dataclass(frozen=True, slots=True)
class NonfiniteMade(Event):
    """An operation (the site) turned a finite gradient into inf or nan on its way back."""

    node: str
    parameters: Ids  # that lie behind it
    loss: bool = False  # the loss itself was inf or nan; the site is that of the backward call


@dataclass(frozen=True, slots=True)
class Differentiated(Event):
    """``torch.autograd.grad`` was called."""

    create: bool
    reached: Ids  # parameters that it went through or that were asked for
    asked: Ids  # parameters whose gradients were asked for


@dataclass(frozen=True, slots=True)
class Cleared(Event):
    """Gradients were set to None or zero."""

    parameters: Ids  # all that the call covers
    full: Ids  # those that had a gradient
    to_none: bool
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Clipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called."""

    parameters: Ids
    full: Ids  # those that had a gradient that is not all zero
    given: int  # how many tensors the call was given
    norm: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """An optimizer stepped."""

    optimizer: int
    used: Ids  # parameters with a gradient that is not None
    zero: Ids = frozenset()  # of those, the gradient is all zero
    frozen: Ids = frozenset()  # of those used, requires_grad is False
    moved: Ids = frozenset()  # parameters whose values changed (looked at while `seen`)
    changed: Ids = (
        frozenset()
    )  # whose values had changed since the last step of any optimizer that holds them
    nonfinite: Ids = frozenset()
    skipped_rows: Ids = frozenset()  # masked by a hook: rows with a zero gradient moved all the same
    lr: tuple[float, ...] = ()
    closure: bool = False
    scaler: int | None = None  # stepped by this gradient scaler
    seen: bool = True
    # (parameter, norm of its gradient, of its change, of its values before); the last two from a sample of them
    norms: tuple[tuple[int, float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Written(Event):
    """A parameter's values, or a gradient, were written by hand."""

    target: Literal["value", "gradient"]
    parameters: Ids
    op: str
    factor: float | None = None  # multiplied by this number, where it was one
    along_gradient: bool = False  # the values were moved down their own gradient
    undoes: bool = (
        False  # the values were put on a coarse grid, which takes back most of what the last step did
    )
    whole: bool = True  # False: a part of the values was written
    restored: bool = False  # the values are now those that an earlier step had left
    pulled: float | None = (
        None  # share of the way to a point that is the same each time, that values were moved
    )
