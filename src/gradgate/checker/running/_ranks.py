"""Several ranks of one machine, each started under a ``gradgate check`` of its own: one of them reports for all.

That is what ``torchrun --no-python gradgate check train.py`` does. The ranks meet in a folder whose name
follows from what torchrun tells each of them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from gradgate.checker.running._script import How
from gradgate.events import Log, from_json, to_json

_PATIENCE_SECONDS = 20.0  # ranks end together; one that is killed leaves nothing
_LAUNCHER = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")


class Ranks:
    """This process's place among the ranks of its machine."""

    def __init__(self) -> None:
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        self._rank = int(os.environ.get("LOCAL_RANK", "0")) if launched else 0
        self._count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched else 1
        told = "-".join(os.environ.get(name, "") for name in _LAUNCHER).replace(os.sep, "-")
        user = os.getuid() if hasattr(os, "getuid") else ""
        # The launcher is the parent of all of them, and a second launcher has another number.
        self._folder = Path(tempfile.gettempdir()) / f"gradgate-ranks-{user}-{os.getppid()}-{told}"

    @property
    def reports(self) -> bool:
        """Say whether this rank reports for all."""
        return self._rank == 0

    def hand_over(self, logs: list[Log]) -> None:
        """Leave the logs for the rank that reports."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{self._rank}.json"
        path.with_suffix(".part").write_text(json.dumps([to_json(log) for log in logs]), encoding="utf-8")
        path.with_suffix(".part").rename(path)

    def gather(self, how: How) -> list[Log]:
        """Return the logs of the other ranks. One that fails or is killed is not waited for long."""
        if self._count == 1:
            return []
        until = time.monotonic() + (_PATIENCE_SECONDS if how == "finished" else 2.0)
        paths = [self._folder / f"{rank}.json" for rank in range(1, self._count)]
        while not all(path.exists() for path in paths) and time.monotonic() < until:
            time.sleep(0.02)
        found = [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]
        shutil.rmtree(self._folder, ignore_errors=True)
        return [from_json(log) for logs in found for log in logs]
