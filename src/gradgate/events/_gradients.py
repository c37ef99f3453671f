"""Events of gradients and values: optimizers, backward calls, clearing, clipping, steps, writes by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gradgate.events._records import Event, Group, Ids, Site, Term


@dataclass(frozen=True, slots=True)
class OptimizerMade(Event):
    """An optimizer was constructed, or was given another parameter group."""

    optimizer: Annotated[int, "its number"]
    kind: Annotated[str, "its class: 'AdamW'"]
    groups: Annotated[tuple[Group, ...], "all parameter groups that it has now"]
    twice: Annotated[Ids, "parameters that it lists more than once"] = frozenset()
    added: Annotated[bool, "emitted for a later add_param_group()"] = False


@dataclass(frozen=True, slots=True)
class StateLoaded(Event):
    """``load_state_dict()`` replaced an optimizer's state."""

    optimizer: Annotated[int, "its number"]
    before: Annotated[int, "parameters that had state before"]
    after: Annotated[int, "parameters that have state now"]


@dataclass(frozen=True, slots=True)
class ModelLoaded(Event):
    """A module loaded its own state, or a state into parameters of a loss or an optimizer."""

    parameters: Annotated[Ids, "those of them that are or were in a loss or an optimizer"]
    own: Annotated[bool, "the loaded tensors share the parameters' memory, so nothing changed"]
    taken: Annotated[Site, "where state_dict() returned the loaded tensors; () if unknown"] = ()
    steps: Annotated[int, "optimizer steps since that call"] = 0


@dataclass(frozen=True, slots=True)
class Backward(Event):
    """A loss was back-propagated into ``.grad``."""

    reached: Annotated[Ids, "parameters whose .grad it added to"]
    seen: Annotated[bool, "False: the graph was not read; `reached` is that of the line's last call"] = True
    root: Annotated[int, "the number of the loss in `Log.values`; -1: not known"] = -1
    terms: Annotated[tuple[Term, ...], "the summands of the loss"] = ()
    others: Annotated[
        int, "leaves it reached that are neither an nn.Parameter nor in an optimizer, such as an input"
    ] = 0
    nodes: Annotated[int, "nodes in the graph"] = 0
    old_nodes: Annotated[int, "nodes made before the last step: the graph reaches back"] = 0
    old_site: Annotated[Site, "where most of the old nodes were made"] = ()
    shared: Annotated[int, "nodes made before this line's previous call, if that call retained its graph"] = 0
    retain: Annotated[bool, "called with retain_graph"] = False
    create: Annotated[bool, "called with create_graph"] = False
    closure: Annotated[bool, "called from the closure of an optimizer's step"] = False
    scaler: Annotated[int | None, "the gradient scaler that scaled the loss, or a part of it"] = None
    hooked: Annotated[bool, "hooks of the script get gradients of values from the forward pass"] = False
    synced: Annotated[bool | None, "DDP averaged the gradients over ranks; None: no DDP"] = None
    around: Annotated[bool, "the DDP that holds these parameters ran no forward pass before the call"] = False
    uses: Annotated[
        tuple[tuple[int, Site], ...],
        "(parameter, first use), ordered by last use; only for the first calls and for calls that bypass DDP",
    ] = ()
    through: Annotated[
        tuple[tuple[int, Site], ...], "(parameter, where it was used), of parameters in no optimizer"
    ] = ()
    beyond: Annotated[Ids, "parameters combined with values of another optimizer's parameters"] = frozenset()
    driven: Annotated[
        Ids, "parameters of last layers whose outputs the loss pushes in one direction, whatever the data"
    ] = frozenset()
    value: Annotated[float | None, "the loss; None unless it is in CPU memory"] = None
    managed: Annotated[bool, "called by gradgate's accumulator, which divides later; without terms"] = False
    trainer: Annotated[str, "the library that accumulates: lightning, transformers, accelerate"] = ""


@dataclass(frozen=True, slots=True)
class Opposed(Event):
    """The gradient that a backward call added points against the gradient that was there before."""

    cosines: Annotated[
        tuple[tuple[int, float], ...], "(parameter, cosine between the two), of some parameters"
    ]


@dataclass(frozen=True, slots=True)
class Combined(Event):
    """A loss combines values in a way that may be a mistake. ``site`` is the operation's line."""

    how: Annotated[
        str,
        "'own target': data + c * f(b), compared with f(a); 'advantage': a log-probability times an error "
        "that is trained; 'broadcast': (N, 1) with (N,); 'broadcast factor': their product; 'teacher', "
        "'trained target': the target of a divergence, or of an error, whose parameters get no other "
        "gradient; 'itself': a ratio of equal values, or the distance between them; 'labels': the target of "
        "a binary cross entropy, which shares parameters with its input; 'probabilities', 'scores', 'other "
        "axis': probabilities, scores, or log-probabilities over another dimension, given to a loss that "
        "takes log-probabilities; 'cancelled': a value that is added and subtracted, whose two gradients "
        "cancel; 'views': two views that the whole loss compares, with a gradient on both sides; "
        "'normalized twice': probabilities given to a loss that takes logits; 'constant': a sum with one "
        "side that has no graph; 'averaged weights': averages of parameters with data, if the loss compares "
        "their network with that of the parameters; 'pulled teacher': the target of a divergence whose "
        "network has a cross entropy of its own; "
        "'added again': an error between two values that both have a gradient, which the loss adds "
        "again with another weight; 'detached once': the same, if the loss adds it again with one value as "
        "a constant; 'float16': a layer that computes in float16; 'pairs': a loss that compares the items "
        "of a batch with one another; 'in batch': the same, if a cross entropy finds each item among all of "
        "them",
    ]
    parameters: Annotated[Ids, "parameters behind the suspicious value"]
    backward: Annotated[
        Site,
        "where the loss was back-propagated; () if gradgate's accumulator found this in a window of several",
    ]
    sizes: Annotated[
        tuple[int, ...],
        "the shape after broadcasting",
    ] = ()
    made: Annotated[Site, "where the probabilities were computed"] = ()


@dataclass(frozen=True, slots=True)
class Miscounted(Event):
    """gradgate's accumulator was given counts out of proportion to the items that the losses' graphs show."""

    count: Annotated[float, "the count of this loss"]
    items: Annotated[float, "the items that its graph shows"]
    first_count: Annotated[float, "the count of the window's first loss of this name"]
    first_items: Annotated[float, "the items that its graph shows"]
    proved: Annotated[bool, "the accumulator would read the items if the count were left out"]


@dataclass(frozen=True, slots=True)
class DividedTwice(Event):
    """gradgate's accumulator was given a mean that was divided by the number of the window's micro-batches."""

    micro_batches: Annotated[int, "the micro-batches of the window"]


@dataclass(frozen=True, slots=True)
class NonfiniteMade(Event):
    """An operation, whose line is ``site``, turned a finite gradient into inf or nan in the backward pass."""

    node: Annotated[str, "the node: 'SqrtBackward0'"]
    parameters: Annotated[Ids, "parameters behind the operation"]
    loss: Annotated[bool, "the loss itself was inf or nan; `site` is the backward call"] = False


@dataclass(frozen=True, slots=True)
class Differentiated(Event):
    """``torch.autograd.grad`` was called."""

    create: Annotated[bool, "called with create_graph"]
    reached: Annotated[Ids, "parameters that the graph leads to"]
    asked: Annotated[Ids, "parameters whose gradients were requested"]
    nodes: Annotated[int, "nodes of the graph"] = 0
    old_nodes: Annotated[int, "nodes made before this line's previous call"] = 0
    old_site: Annotated[Site, "where most of the old nodes were made"] = ()


@dataclass(frozen=True, slots=True)
class Cleared(Event):
    """Gradients were set to None or zero."""

    parameters: Annotated[Ids, "parameters that the call covers"]
    full: Annotated[Ids, "those that had a gradient"]
    by_hand: Annotated[bool, "by an assignment, not by zero_grad()"] = False


@dataclass(frozen=True, slots=True)
class Clipped(Event):
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called."""

    parameters: Annotated[Ids, "parameters whose gradients were to be clipped"]
    full: Annotated[Ids, "those with a gradient that is not all zero"]
    given: Annotated[int, "number of tensors in the call"]
    norm: Annotated[
        float | None, "total norm before clipping; None if it was not read, or values were clipped"
    ] = None
    limit: Annotated[
        float | None, "the largest norm or absolute value allowed; None if it is infinite or unknown"
    ] = None


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """An optimizer stepped."""

    optimizer: Annotated[int, "its number"]
    used: Annotated[Ids, "parameters with a gradient that is not None"]
    zero: Annotated[Ids, "those of them whose gradient is all zero"] = frozenset()
    frozen: Annotated[Ids, "those of them with requires_grad False"] = frozenset()
    moved: Annotated[Ids, "parameters whose values changed; only if `seen`"] = frozenset()
    changed: Annotated[Ids, "parameters that something else changed since their last step"] = frozenset()
    kept: Annotated[
        bool | None,
        "an optimizer's first step begins with the values that an earlier optimizer's last step left; None: "
        "unknown, or a later step",
    ] = None
    nonfinite: Annotated[Ids, "parameters whose gradient holds inf or nan"] = frozenset()
    rounded: Annotated[Ids, "16-bit parameters most of whose updates were rounded away so far"] = frozenset()
    lr: Annotated[tuple[float, ...], "learning rate of each group"] = ()
    closure: Annotated[bool, "called with a closure that ran a backward pass"] = False
    scaler: Annotated[int | None, "the gradient scaler that made the call"] = None
    seen: Annotated[bool, "values and gradients were examined; False: only counted"] = True
    norms: Annotated[
        tuple[tuple[int, float, float, float], ...],
        "(parameter, gradient norm, norm of the change, norm of the values before); the last two from a sample",
    ] = ()


@dataclass(frozen=True, slots=True)
class Written(Event):
    """The user's code wrote to a parameter's values or to a gradient."""

    target: Annotated[Literal["value", "gradient"], "whether a value or a gradient was written"]
    parameters: Annotated[Ids, "parameters whose value or gradient was written"]
    op: Annotated[str, "the method: 'mul_', 'data'; 'assigned' for a new .grad"]
    factor: Annotated[float | None, "the number that multiplied it; None for any other write"] = None
    whole: Annotated[bool, "False: only a part of the values was written"] = True
    restored: Annotated[bool, "the new values equal those after an earlier step"] = False
    same: Annotated[bool, "the values stayed as they were"] = False
    pulled: Annotated[float | None, "the values moved this fraction of the way to a fixed point"] = None
