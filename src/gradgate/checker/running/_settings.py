"""What the processes of one run know of each other: an environment variable carries it to every child."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "GRADGATE_RUN"
_INJECTED = str(Path(__file__).parent / "inject")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a process leaves its log, and how long it may run."""

    folder: str
    max_steps: int | None = None

    def added_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment whose processes learn of the run."""
        before = environment.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join([_INJECTED, *(entry for entry in before if entry not in ("", _INJECTED))])
        return {**environment, VARIABLE: json.dumps(dataclasses.asdict(self)), "PYTHONPATH": path}

    def given_to(self, environment: Any) -> Any:
        """Return the environment that a process is to be started with; one of bytes stays as it is."""
        if not all(isinstance(name, str) for name in environment):
            return environment
        return self.added_to(environment)

    @classmethod
    def from_environment(cls) -> Settings | None:
        """Return the settings of the run that started this process, if one did."""
        text = os.environ.get(VARIABLE)
        return cls(**json.loads(text)) if text else None
