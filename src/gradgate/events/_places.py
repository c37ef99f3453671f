"""What events speak of: lines of code, parameters, groups of them, terms of a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

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
    began: float | None = None  # the sum of some of its absolute values before its first step
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
