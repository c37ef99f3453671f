"""Runs a short script under watch, as `gradgate check` does, for rules that are judged by what torch records."""

import runpy
import tempfile
from pathlib import Path

import pytest

from gradgate.checker.recording import Watcher
from gradgate.checker.rules import Finding, check


def findings_of(text: str) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        script = Path(folder, "train.py")
        script.write_text(text, "utf-8")
        patch.setattr("sys.argv", ["train.py"])
        watcher = Watcher(str(script), strict=True)
        watcher.start()
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            watcher.stop()
        return check(watcher.log(), strict=True)
