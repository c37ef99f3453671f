"""The scripts with a planted mistake, and their fixed versions."""

import contextlib
import io
import runpy
from pathlib import Path

import pytest

from gradgate.checker.recording import Watcher
from gradgate.checker.rules import Finding, check

ROOT = Path(__file__).parents[2]
CHECKED = ROOT / "examples" / "checked"


def findings(script: Path) -> list[Finding]:
    watcher = Watcher(str(script), strict=True)
    watcher.start()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        watcher.stop()
    return check(watcher.log(), strict=True)


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("digits", "GG101", "if i % ACCUMULATE == 0:"),
        ("padding", "GG103", "(loss / ACCUMULATE).backward()"),
        ("rings", "GG203", "opt_d.zero_grad()"),
    ],
)
def test_the_planted_mistake_is_found_and_its_fixed_version_is_right(name: str, code: str, line: str) -> None:
    (found,) = [each for each in findings(CHECKED / f"{name}.py") if each.severity != "info"]
    assert found.code == code
    assert (CHECKED / f"{name}.py").read_text("utf-8").splitlines()[found.line - 1].strip() == line
    assert [each for each in findings(CHECKED / f"{name}_fixed.py") if each.severity != "info"] == []


def difference(before: list[str], after: list[str]) -> list[str]:
    return [line for line in after if line not in before]
