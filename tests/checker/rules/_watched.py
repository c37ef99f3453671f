"""Runs a short script under watch, as `gradgate check` does, for rules that are judged by what torch records."""

import runpy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradgate.checker.recording import Watcher
from gradgate.checker.rules import Finding, check


@contextmanager
def _written(text: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        script = Path(folder, "train.py")
        script.write_text(text, "utf-8")
        patch.setattr("sys.argv", ["train.py"])
        yield script


def findings_of(text: str) -> list[Finding]:
    """Return what is found in a script."""
    with _written(text) as script:
        return findings_in(script)


def findings_in(script: Path) -> list[Finding]:
    """Return what is found in a script that is a file already."""
    watcher = Watcher(str(script), strict=True)
    watcher.start()
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        watcher.stop()
    return check(watcher.log(), strict=True)
