"""The interpreters that a watched script starts: how they learn of it, and the logs that they leave."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from gradgate.checker.running._exits import guard_exits
from gradgate.checker.running._multiprocessing import hook_into_forks, hook_into_spawned
from gradgate.checker.running._process import started_alone, watch_this_child
from gradgate.checker.running._settings import VARIABLE, Settings
from gradgate.events import Log, from_json


class Children:
    """A folder for the children's logs, and the environment that tells them of it."""

    def __init__(self, max_steps: int | None) -> None:
        self.settings = Settings(tempfile.mkdtemp(prefix="gradgate-"), max_steps)
        self._before = {name: os.environ.get(name) for name in ("PYTHONPATH", VARIABLE)}
        os.environ.update(self.settings.added_to(os.environ))

    def logs(self) -> list[Log]:
        """Return the logs that children have left, and give back folder and environment."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        logs = read_logs(Path(self.settings.folder))
        shutil.rmtree(self.settings.folder, ignore_errors=True)
        return logs


def read_logs(folder: Path) -> list[Log]:
    """Return the logs in a folder, by rank."""
    found = [from_json(json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda log: log.rank)


def prepare_child(*, of_multiprocessing: bool) -> None:
    """Prepare an interpreter that a watched script started. Called before anything else runs in it."""
    settings = Settings.from_environment()
    if settings is None:
        return
    watch_this_child(settings)
    if of_multiprocessing:
        hook_into_spawned()
    else:
        started_alone()
    guard_exits()
    hook_into_forks()
