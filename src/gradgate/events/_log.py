"""One process's run: its parameters, and what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gradgate.events._places import Event, Parameter
from gradgate.events._spans import Span


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
    failures: tuple[str, ...] = ()  # of the watcher itself, as tracebacks: what it saw may be incomplete
    spans: tuple[Span, ...] = ()  # of the first part of the run
    unseen: tuple[
        str, ...
    ] = ()  # what cannot be seen with this version of torch, with the rules that miss it
    not_judged: str = ""  # why what was seen does not tell what happened, if so; then there are no events

    VERSION: ClassVar[int] = 1
