"""What happened to which gradient, when: plain records that can be saved, read again and judged without torch.

A :class:`Log` is one process's run: a table of parameters, and events in the order in which they happened.
Parameters and optimizers stand in events as small numbers. A :data:`Site` is where the user's code was: its
frames, the innermost first; frames of torch and of other libraries are left out.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

Ids: TypeAlias = frozenset[int]
"""Numbers of parameters."""


class Frame(NamedTuple):
    """One line of the user's code that was running."""

    file: str
    line: int
    function: str


Site: TypeAlias = tuple[Frame, ...]
"""Where something happened: the user's frames, the innermost first. Empty where no user's code ran."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that a loss reached, or that an optimizer holds, and what was seen of it during the run."""

    id: int
    name: str  # "model.fc1.weight", or "" where no module and no variable holds it
    root: str  # the outermost module that holds it: "model"; "" where none does
    shape: tuple[int, ...]
    nbytes: int
    made: Site = ()  # where it was created, if that was watched
    made_at: int = -1  # how many events had happened then; -1: before the watching began, or not seen
    copied: bool = False  # made by copy.deepcopy
    trainable: bool = True  # requires_grad, at the end
    registered: bool = True  # a live module has it among its parameters, at the end
    looks: int = 0  # how often its gradient was looked at before a step
    zeros: int = 0  # how often all of it was exactly zero
    zeroed: Site = ()  # the operation that turned its gradient to zero
    still: bool = False  # its values were the same at every look
    norms: tuple[float, ...] = ()  # the first few of its gradient's norms before steps


@dataclass(frozen=True, slots=True)
class Group:
    """One of an optimizer's parameter groups."""

    parameters: Ids
    lr: float | None
    weight_decay: float = 0.0
    momentum: float = 0.0


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a loss: a scalar factor times the first reduction below the root.

    ``factors`` are the numbers that it is multiplied by on its way to the root, divisions as (op "div", divisor).
    ``items`` is what a mean was taken over, where that is known. ``key`` is the same for the same node of a graph.
    """

    key: int
    kind: str  # "mean", "sum", "other", or "constant" for a summand without a gradient
    name: str  # the node: "NllLossBackward0"
    factors: tuple[tuple[str, float, Site], ...] = ()
    items: float | None = None
    sizes: tuple[int, ...] = ()  # shape of what was reduced
    site: Site = ()
    squares: Ids = frozenset()  # the parameters themselves whose squares it sums: an L2 penalty
    masked: float | None = None  # share of ones in a 0/1 mask that it was multiplied by just before
    classes: int | None = (
        None  # of a log_softmax whose product with targets a mean is taken of, classes and all
    )
    paths: int = 1  # ways that lead from the root to it
    joined: Site = ()  # where the last of several ways joins the others
    scaled: bool = False  # a gradient scaler's factor was on the way; it does not stand in `factors`
    reach: Ids = frozenset()  # parameters that it reaches; told the first times, of a loss of several terms

    @property
    def weight(self) -> float:
        """What the term counts in the root: the product of its factors."""
        weight = 1.0
        for op, number, _ in self.factors:
            weight = (weight / number if number else float("inf")) if op == "div" else weight * number
        return weight


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at a line of the user's code."""

    site: Site


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
    uses: tuple[tuple[int, Site], ...] = ()  # (parameter, first use), in order of use; only the first time
    through: tuple[tuple[int, Site], ...] = ()  # (parameter, where it was used), of those in no optimizer
    beyond: Ids = (
        frozenset()
    )  # of those in no optimizer: used on what was computed from others that are in one
    stale: tuple[tuple[int, Site], ...] = ()  # (parameter, write) whose value changed since the forward
    value: float | None = None  # of the loss, where reading it waits for nothing


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


@dataclass(frozen=True, slots=True)
class SchedulerMade(Event):
    """A learning-rate scheduler was constructed."""

    scheduler: int
    kind: str
    optimizer: int
    horizon: float | None = None  # steps until it has run its course: T_max, total_steps, the last milestone
    periodic: bool = False
    lr: tuple[float, ...] = ()  # the first rates


@dataclass(frozen=True, slots=True)
class Scheduled(Event):
    """A scheduler was advanced."""

    scheduler: int
    lr: tuple[float, ...] = ()
    inner: bool = False  # by another scheduler, or by its own class's override


@dataclass(frozen=True, slots=True)
class ScalerMade(Event):
    """A gradient scaler was constructed."""

    scaler: int
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Scaled(Event):
    """A gradient scaler multiplied a loss by its scale."""

    scaler: int


@dataclass(frozen=True, slots=True)
class Unscaled(Event):
    """A gradient scaler divided an optimizer's gradients by its scale."""

    scaler: int
    optimizer: int


@dataclass(frozen=True, slots=True)
class ScalerStepped(Event):
    """A gradient scaler was asked to step an optimizer, and did, or skipped."""

    scaler: int
    optimizer: int
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class ScalerUpdated(Event):
    """A gradient scaler was given the chance to change its scale."""

    scaler: int


@dataclass(frozen=True, slots=True)
class EpochStarted(Event):
    """A DataLoader began to be iterated over."""

    loader: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class EpochEnded(Event):
    """A DataLoader was exhausted."""

    loader: int


@dataclass(frozen=True, slots=True)
class ModeSet(Event):
    """``train()`` or ``eval()`` was called on a module."""

    module: str
    training: bool
    parameters: Ids
    depends: bool  # something beneath behaves differently in training: dropout, batch norm


@dataclass(frozen=True, slots=True)
class NoGradEntered(Event):
    """The user's code entered ``no_grad`` or ``inference_mode``."""


@dataclass(frozen=True, slots=True)
class Cut(Event):
    """Something took a value out of the graph: detach, item, numpy, data, argmax, a new tensor."""

    op: str
    parameters: Ids  # that the value depended on
    scalar: bool


@dataclass(frozen=True, slots=True)
class Ran(Event):
    """A module that is suspected to be without gradient ran."""

    parameters: Ids
    recording: bool  # gradients were being recorded
    differentiable: bool = True  # its input or its parameters require a gradient
    training: bool = True


@dataclass(frozen=True, slots=True)
class StatisticsMoved(Event):
    """A batch norm's running statistics changed though all of its parameters are frozen."""

    module: str
    parameters: Ids
    count: int = 1


@dataclass(frozen=True, slots=True)
class GraphsKept(Event):
    """Graphs of earlier backward calls are still alive."""

    count: int
    backward: Site  # the calls whose graphs are kept
    holder: str = ""  # what holds them: "losses", "self.total"
    added: Site = ()


@dataclass(frozen=True, slots=True)
class Reduced(Event):
    """The user's code exchanged a tensor between ranks."""

    op: str  # "all_reduce:sum"
    parameters: Ids  # whose gradients or values these were
    world: int
    numel: int = 0


@dataclass(frozen=True, slots=True)
class Sharded(Event):
    """Data was divided among ranks, by a DistributedSampler."""

    ranks: int


@dataclass(frozen=True, slots=True)
class Gap(Event):
    """Events between here and the next are not in the log: the run was too long to keep them all."""

    count: int


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The run is over. ``site`` is empty."""

    how: Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Log:
    """All that was seen of one process's run."""

    script: str
    parameters: Mapping[int, Parameter] = field(default_factory=dict)
    optimizers: Mapping[int, str] = field(default_factory=dict)  # names: "optimizer", "self.opt_d"
    events: tuple[Event, ...] = ()
    steps: int = 0
    backwards: int = 0
    seconds: float = 0.0
    watching_seconds: float = 0.0  # of those, spent by the watcher itself
    rank: int = 0
    world: int = 1
    distributed: bool = False  # DDP, FSDP or the like wraps a module
    failures: tuple[str, ...] = ()  # of the watcher itself: what it saw may be incomplete

    VERSION: ClassVar[int] = 1


EVENTS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


def to_json(log: Log) -> dict[str, Any]:
    """Turn a log into what :mod:`json` can write; sites and sets that repeat stand once, in tables."""
    sites: dict[Site, int] = {}
    sets: dict[Ids, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, frozenset):
            return sets.setdefault(value, len(sets))
        if isinstance(value, tuple):
            if not value or isinstance(value[0], Frame):
                return {"site": sites.setdefault(value, len(sites))} if value else []
            return [plain(item) for item in value]
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return value

    events = [{"event": type(event).__name__, **plain(event)} for event in log.events]
    parameters = [plain(parameter) for parameter in log.parameters.values()]
    rest = {
        f.name: getattr(log, f.name)
        for f in dataclasses.fields(log)
        if f.name not in ("events", "parameters", "optimizers")
    }
    return {
        "version": Log.VERSION,
        **rest,
        "optimizers": {str(number): name for number, name in log.optimizers.items()},
        "parameters": parameters,
        "events": events,
        "sites": [[list(frame) for frame in site] for site in sites],
        "sets": [sorted(ids) for ids in sets],
    }


def from_json(saved: Mapping[str, Any]) -> Log:
    """Read a log that :func:`to_json` made.

    Raises:
        ValueError: it was made by a version that writes another form.
    """
    if saved.get("version") != Log.VERSION:
        raise ValueError(
            f"from_json: this log has version {saved.get('version')!r}, version {Log.VERSION} is read here. "
            "Make it again with this version of gradgate."
        )
    sites = [tuple(Frame(*frame) for frame in site) for site in saved["sites"]]
    sets = [frozenset(ids) for ids in saved["sets"]]

    def read(value: Any, kind: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"site"}:
            return sites[value["site"]]
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is frozenset:
            return sets[value]
        if origin is tuple and value is not None:
            inner = arguments if len(arguments) == len(value) and ... not in arguments else None
            return tuple(
                read(item, inner[number] if inner else arguments[0]) for number, item in enumerate(value)
            )
        if origin in (types.UnionType, typing.Union) and value is not None:
            return read(value, next(option for option in arguments if option is not type(None)))
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            return record(typing.cast("type[Any]", kind), value)
        return value

    def record(kind: type[Any], value: Mapping[str, Any]) -> Any:
        hints = _hints(kind)
        return kind(**{name: read(item, hints[name]) for name, item in value.items() if name != "event"})

    parameters = [record(Parameter, item) for item in saved["parameters"]]
    rest: dict[str, Any] = {
        f.name: tuple(saved[f.name]) if isinstance(saved[f.name], list) else saved[f.name]
        for f in dataclasses.fields(Log)
        if f.name not in ("events", "parameters", "optimizers")
    }
    return Log(
        **rest,
        optimizers={int(number): name for number, name in saved["optimizers"].items()},
        parameters={parameter.id: parameter for parameter in parameters},
        events=tuple(record(EVENTS[item["event"]], item) for item in saved["events"]),
    )


_known_hints: dict[type, dict[str, Any]] = {}


def _hints(kind: type) -> dict[str, Any]:
    if kind not in _known_hints:
        _known_hints[kind] = typing.get_type_hints(kind)
    return _known_hints[kind]
