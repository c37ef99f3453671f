"""An event log and its parts: parameters, positions in the source, and the base of all events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

Ids: TypeAlias = frozenset[int]
"""Numbers of parameters, as in :class:`Log.parameters`."""


class Frame(NamedTuple):
    """A line of the user's code on the call stack."""

    file: Annotated[str, "absolute path, or a name such as '<stdin>' or 'train.ipynb cell 3'"]
    line: Annotated[int, "from 1"]
    function: Annotated[str, "the function's name, '<module>' at the top level"]


Site: TypeAlias = tuple[Frame, ...]
"""A position of the user's code: its frames, innermost first. Empty if no user code was running."""


@dataclass(slots=True)
class Parameter:
    """A tensor that a loss reached or an optimizer holds, with measurements taken during the run.

    The watcher updates its own records during the run. A log holds copies, which nothing changes.
    """

    id: Annotated[int, "the number by which events refer to it"]
    name: Annotated[str, "'model.fc1.weight'; '' if no module or variable holds it"]
    root: Annotated[str, "the outermost module that holds it, 'model'; '' if there is none"]
    shape: Annotated[tuple[int, ...], "its shape; () for a lazy parameter"]
    nbytes: Annotated[int, "its size in bytes"]
    made: Annotated[Site, "where it was created, if the watcher saw that"] = ()
    made_at: Annotated[int, "number of events before its creation; -1: not seen"] = -1
    trainable: Annotated[bool, "requires_grad at the end of the run"] = True
    registered: Annotated[bool, "a live module owns it at the end of the run"] = True
    looks: Annotated[int, "optimizer steps before which its gradient was examined"] = 0
    zeros: Annotated[int, "how many of those gradients were exactly zero"] = 0
    zeroed: Annotated[Site, "the operation that turned its gradient to zero"] = ()
    zeroed_by: Annotated[str, "autograd's name of that operation: 'MulBackward0'; '' if unknown"] = ""
    still: Annotated[bool, "no examined step changed its values"] = False
    began: Annotated[float | None, "sum of sampled absolute values before its first step"] = None
    ended: Annotated[float | None, "the same sum after its last step, or after the last examined step"] = None
    dtype: Annotated[str, "'float32', 'bfloat16', ...; '' if unknown"] = ""
    misfrozen: Annotated[
        str,
        "an attribute that was set to False but freezes nothing: 'requires_grad' of a module, or a misspelling",
    ] = ""
    copied: Annotated[bool, "a deep copy of another parameter"] = False


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter group of an optimizer."""

    parameters: Annotated[Ids, "the group's parameters"]
    lr: Annotated[float | None, "learning rate; None if it is not a number"]
    weight_decay: Annotated[float, "0 if the optimizer has none"] = 0.0
    momentum: Annotated[float, "momentum, or the first of Adam's betas"] = 0.0


@dataclass(frozen=True, slots=True)
class Term:
    """A summand of a loss: a scalar factor times the first reduction below the root of the graph."""

    key: Annotated[int, "identifies the graph node: equal keys are the same node"]
    kind: Annotated[str, "'mean', 'sum', 'other', or 'constant' for a summand without a gradient"]
    factors: Annotated[
        tuple[tuple[str, float, Site], ...],
        "the factors of the term, as (op, number, where); op 'div' divides",
    ] = ()
    items: Annotated[float | None, "items of a mean, or of a sum over targets or a mask"] = None
    sizes: Annotated[tuple[int, ...], "shape of the reduced tensor"] = ()
    site: Annotated[Site, "where the reduction was computed"] = ()
    squares: Annotated[Ids, "parameters whose squares it sums: an L2 penalty"] = frozenset()
    weighted: Annotated[bool, "`items` adds up class weights"] = False
    masked: Annotated[
        float | None,
        "fraction of the items that a 0/1 mask just before the reduction, or ignored targets, keep",
    ] = None
    classes: Annotated[int | None, "classes of a log_softmax, if the mean also runs over them"] = None
    equal: Annotated[bool, "the term is a distance between two values that were equal everywhere"] = False
    paths: Annotated[int, "number of paths from the root to it"] = 1
    times: Annotated[
        float, "weight over all paths, divided by the weight of the first path, which `factors` gives"
    ] = 1.0
    joined: Annotated[Site, "where the last of several paths joins the others"] = ()
    scaled: Annotated[bool, "a gradient scaler's factor is on the path; `factors` leaves it out"] = False
    reach: Annotated[Ids, "parameters it reaches; only in first calls of losses with several terms"] = (
        frozenset()
    )
    shared: Annotated[
        bool, "another term uses results of the same operations; known in the same calls as `reach`"
    ] = False

    @property
    def weight(self) -> float:
        """The weight of the term in the loss: the product of its factors, over all paths."""
        weight = self.times
        for op, number, _ in self.factors:
            weight = (weight / number if number else float("inf")) if op == "div" else weight * number
        return weight


Doing: TypeAlias = Literal["load", "backward", "clear", "clip", "step", "schedule", "exchange"]
"""The kinds of time span in a training loop. Time between two spans is the forward pass."""


class Span(NamedTuple):
    """A time span of a training loop, on a clock that excludes the watcher's own work."""

    doing: Annotated[Doing, "what the time was spent on"]
    start: Annotated[float, "seconds"]
    end: Annotated[float, "seconds"]
    at: Annotated[int, "number of events recorded before it began"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at a position of the user's code. Every subclass is one kind of event."""

    site: Annotated[Site, "where it happened: the user's frames, innermost first"]


class Value(NamedTuple):
    """The result of an operation, or a leaf. Values are numbered in the order in which they were computed."""

    op: Annotated[
        str,
        "the operation: 'add', 'linear'; 'leaf' for a parameter, 'grad' for a derivative, 'apply' for a Function",
    ]
    parents: Annotated[tuple[int, ...], "the values that it was computed from, without data"]
    live: Annotated[bool, "autograd knows how it was computed, or it is a leaf with a gradient"]
    site: Annotated[Site, "where it was computed"]
    leaf: Annotated[int, "the number of a leaf; -1 for any other value"] = -1
    size: Annotated[int, "number of elements"] = 1
    whole: Annotated[bool, "its elements are integers or booleans"] = False
    off: Annotated[Site, "where gradients were turned off, if they were off"] = ()
    data: Annotated[bool, "it was also computed from a tensor that depends on no parameter"] = False


class Read(NamedTuple):
    """A value that Python read: ``item()``, ``numpy()``, an f-string."""

    value: Annotated[int, "its number"]
    how: Annotated[str, "the method: 'item', 'format'"]
    site: Annotated[Site, "where it was read"]


@dataclass(frozen=True, slots=True)
class Values:
    """The graph of values of the first steps. It goes on where a value leaves autograd's graph."""

    nodes: Annotated[tuple[Value, ...], "the values, in order"] = ()
    reads: Annotated[tuple[Read, ...], "the values that Python read"] = ()
    leaves: Annotated[tuple[int, ...], "the parameter that each leaf is; -1: no parameter"] = ()
    dropped: Annotated[tuple[int, ...], "detached values that were freed before anything used them"] = ()


@dataclass(frozen=True, slots=True)
class Log:
    """One process's run: a table of parameters, and events in the order in which they happened."""

    script: Annotated[str, "the file that was run; '' for a block in a notebook or a test"]
    parameters: Annotated[Mapping[int, Parameter], "every parameter that was seen, by number"] = field(
        default_factory=dict
    )
    optimizers: Annotated[
        Mapping[int, str],
        "the variable that holds each optimizer: 'optimizer', 'opt_d'; '' if none was found",
    ] = field(default_factory=dict)
    events: Annotated[tuple[Event, ...], "the events, in order"] = ()
    steps: Annotated[int, "optimizer steps"] = 0
    backwards: Annotated[int, "backward calls"] = 0
    seconds: Annotated[float, "duration of the run"] = 0.0
    watching_seconds: Annotated[float, "the part of `seconds` that the watcher itself took"] = 0.0
    rank: Annotated[int, "this process's rank"] = 0
    world: Annotated[int, "number of ranks"] = 1
    distributed: Annotated[bool, "DDP, FSDP or the like wraps a module"] = False
    failures: Annotated[
        tuple[str, ...], "tracebacks of the watcher's own errors: the log may be incomplete"
    ] = ()
    spans: Annotated[tuple[Span, ...], "time spans of the first part of the run"] = ()
    unseen: Annotated[tuple[str, ...], "features that could not be observed or run, and the reasons"] = ()
    not_judged: Annotated[str, "why the rules cannot judge this run, or only its beginning; else ''"] = ""
    circumstances: Annotated[
        Mapping[str, str], "how and where it ran, by label: command, date, device, versions"
    ] = field(default_factory=dict)
    values: Annotated[Values, "the values of the first steps"] = Values()

    def __repr__(self) -> str:
        done = f"{self.steps:,} steps, {self.backwards:,} backward calls, {len(self.events):,} events"
        return f"Log({self.script or 'a loop'}, rank {self.rank} of {self.world}: {done})"
