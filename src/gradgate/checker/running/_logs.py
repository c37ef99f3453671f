"""Connect the processes of one run, and collect their logs."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradgate.events import Log

VARIABLE = "GRADGATE_RUN"
_INJECTED = str(Path(__file__).parent / "inject")


@dataclass(frozen=True, slots=True)
class Settings:
    """The run's log folder and when to stop. An environment variable passes them to every child."""

    folder: str
    max_steps: int | None = None
    max_seconds: float | None = None

    def added_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of an environment that makes new processes join the run."""
        before = environment.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join([_INJECTED, *(entry for entry in before if entry not in ("", _INJECTED))])
        return {**environment, VARIABLE: json.dumps(dataclasses.asdict(self)), "PYTHONPATH": path}

    def given_to(self, environment: Any) -> Any:
        """Return the environment for a new process. An environment of bytes is returned unchanged."""
        return (
            self.added_to(environment) if all(isinstance(name, str) for name in environment) else environment
        )

    @classmethod
    def from_environment(cls) -> Settings | None:
        """Return the settings of the run that started this process, or None."""
        text = os.environ.get(VARIABLE)
        return cls(**json.loads(text)) if text else None


def write_log(path: Path, log: Log) -> None:
    """Write a log to a file atomically."""
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(log))
    part.replace(path)


class ChildLogs:
    """A folder for the logs of child processes. An environment variable passes the path to the children."""

    def __init__(self, max_steps: int | None, max_seconds: float | None) -> None:
        self.settings = Settings(tempfile.mkdtemp(prefix="gradgate-"), max_steps, max_seconds)
        self._before = {name: os.environ.get(name) for name in ("PYTHONPATH", VARIABLE)}
        os.environ.update(self.settings.added_to(os.environ))

    def take(self) -> list[Log]:
        """Return the logs by rank, remove the folder, and restore the environment."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        files = sorted(Path(self.settings.folder).glob("*.pickle"))
        logs: list[Log] = [pickle.loads(file.read_bytes()) for file in files]
        shutil.rmtree(self.settings.folder, ignore_errors=True)
        return sorted(logs, key=lambda log: log.rank)
