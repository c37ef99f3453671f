"""The scripts with a planted mistake, and their fixed versions."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

from gradgate.checker.recording import Watcher
from gradgate.checker.rules import Finding, check
from tests.interpreter import python
from tests.pages import blocks

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
        ("diabetes", "GG107", "loss = ((model(x[rows]) - y[rows]) ** 2).mean()"),
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


def test_readme_shows_what_the_command_prints() -> None:
    command = "gradgate check examples/checked/diabetes.py"
    (shown,) = [block.text for block in blocks(ROOT / "README.md") if f"$ {command}\n" in block.text]
    done = python("-m", *command.split(), cwd=ROOT)
    assert done.returncode == 1, done.stderr
    expected, printed = (
        re.sub(r"took .*", "took", text) for text in (shown.partition(f"$ {command}\n")[2], done.stdout)
    )
    assert printed == expected
