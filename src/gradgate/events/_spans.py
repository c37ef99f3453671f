"""How long the parts of a loop took."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Doing: TypeAlias = Literal["load", "backward", "clear", "clip", "step", "schedule", "exchange"]
"""What a stretch of a loop was spent on; the forward pass is what lies between."""


class Span(NamedTuple):
    """A stretch of a loop, in seconds on the script's own clock: that which stands still while watching works."""

    doing: Doing
    start: float
    end: float
    at: int  # how many events had been recorded when it began
