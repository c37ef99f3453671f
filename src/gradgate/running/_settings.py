"""What the processes of one run know of each other: an environment variable carries it to every child."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

VARIABLE = "GRADGATE_RUN"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a process leaves its log, and how long it may run."""

    folder: str
    max_steps: int | None = None

    def to_environment(self) -> None:
        """Hand the settings to the processes that are started from now on."""
        os.environ[VARIABLE] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_environment(cls) -> Settings | None:
        """Return the settings of the run that started this process, if one did."""
        text = os.environ.get(VARIABLE)
        return cls(**json.loads(text)) if text else None
