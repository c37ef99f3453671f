"""The corpus of training scripts keeps its own rules: every script runs, and says what it is."""

import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parent / "scripts"
WRONG = sorted(SCRIPTS.glob("wrong/*/*.py"))
RIGHT = sorted(SCRIPTS.glob("right/*/*.py"))
MARKER = re.compile(r"# expect: ([a-z-]+)$", re.MULTILINE)


def name(path: Path) -> str:
    return path.relative_to(SCRIPTS).with_suffix("").as_posix()


def run(script: Path) -> object:
    """Run a script as python does, and return what it exits with."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return end.code
    return None


@pytest.mark.parametrize("script", [*WRONG, *RIGHT], ids=name)
def test_a_script_runs_to_its_end(script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a wrong script may well be warned of by torch
        try:
            exit_code = run(script)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
    assert not exit_code


@pytest.mark.parametrize("script", WRONG, ids=name)
def test_a_wrong_script_marks_the_line_to_change(script: Path) -> None:
    marked = MARKER.findall(script.read_text("utf-8"))
    assert marked
    assert set(marked) == {script.parent.name}


@pytest.mark.parametrize("script", RIGHT, ids=name)
def test_a_right_script_marks_nothing(script: Path) -> None:
    assert "# expect" not in script.read_text("utf-8")
