"""Records how a loss reaches parameters, and where its gradient stops, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from gradgate.events import Frame

Why: TypeAlias = Literal[
    "detach",
    "no_grad",
    "inference_mode",
    "not differentiable",
    "value taken out",
    "requires_grad",
    "custom function",
    "reentrant checkpoint",
    "not used",
    "not in the graph",
    "not in the optimizer",
    "lr=0",
]


@dataclass(frozen=True)
class Stop:
    """The reason why a loss does not move a parameter.

    ``why`` is one of these kinds:

    - an operation without a gradient: "detach", "no_grad", "inference_mode", "not differentiable", "value taken
      out" (such as ``.item()``), "custom function" or "reentrant checkpoint";
    - the parameter itself: "requires_grad";
    - no optimizer uses the gradient: "not in the optimizer" or "lr=0";
    - the loss does not depend on the parameter: "not used", or "not in the graph" if a loss was given rather than
      the function that computes it.

    ``op`` is the operation's name, ``frame`` the user's line if it is known.
    """

    why: Why
    op: str = ""
    frame: Frame | None = None

    @property
    def unstepped(self) -> bool:
        """Whether the parameter has a gradient that no optimizer uses."""
        return self.why in ("not in the optimizer", "lr=0")

    def __str__(self) -> str:
        op = f" ({self.op})" if self.op and self.op != self.why else ""
        return f"{self.why}{op}{'' if self.frame is None else f' at {location(self.frame)}'}"


@dataclass(frozen=True)
class Reach:
    """How many paths lead from a loss to a parameter, and what stops the gradient on other paths.

    Even a parameter that is reached can have stops: on its other paths, or because no optimizer uses its gradient.
    """

    name: str
    shape: tuple[int, ...]
    paths: int
    stops: tuple[Stop, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether the loss gives the parameter a gradient."""
        return self.paths > 0


def location(frame: Frame) -> str:
    """Return a line of code as ``file:line``."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"
