"""Events of the forward pass: modes, blocks without gradients, batch norms, graphs that stay alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gradgate.events._records import Event, Ids, Site


@dataclass(frozen=True, slots=True)
class ModeSet(Event):
    """``train()`` or ``eval()`` was called on a module."""

    training: Annotated[bool, "the new mode"]
    parameters: Annotated[Ids, "the module's parameters"]
    depends: Annotated[bool, "the mode matters: the module contains dropout, batch norm or similar"]
    copied: Annotated[
        bool, "the module is a copy, made in this mode; `site` is where the original's mode was set"
    ] = False


@dataclass(frozen=True, slots=True)
class NoGradEntered(Event):
    """The user's code entered ``no_grad`` or ``inference_mode``."""


@dataclass(frozen=True, slots=True)
class StatisticsMoved(Event):
    """A batch norm's running statistics changed, but its parameters are frozen or have been in no loss so far."""

    parameters: Annotated[Ids, "the batch norm's parameters"]
    drift: Annotated[
        tuple[float, float] | None,
        "change since the first step: means, in standard deviations; variances, as a fraction",
    ] = None


@dataclass(frozen=True, slots=True)
class GraphsKept(Event):
    """Graphs of earlier backward calls are still alive, or an evaluation has collected graphs that nothing uses."""

    count: Annotated[int, "number of graphs that were seen; there may be more"]
    backward: Annotated[Site, "the backward calls that left these graphs"]
    holder: Annotated[str, "the variable that holds the graphs: 'losses', 'self.total'"] = ""
    added: Annotated[Site, "where the graphs were added to the variable"] = ()
