"""What happens in and after a forward pass: modes, cuts, modules that run, graphs that stay."""

from __future__ import annotations

from dataclasses import dataclass

from gradgate.events._places import Event, Ids, Site


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

    held: tuple[
        tuple[str, Ids], ...
    ] = ()  # variables whose graph leads to parameters without gradient so far


@dataclass(frozen=True, slots=True)
class Cut(Event):
    """Something took a value out of the graph: detach, item, numpy, data, argmax, a new tensor.

    "no_grad": it was given to a module that ran without a graph.
    """

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
