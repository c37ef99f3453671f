"""The scripts with a planted mistake, and their fixed versions."""

import contextlib
import io
import runpy
from pathlib import Path

import pytest

from gradgate.checker.fixes import apply, edits_for
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


def test_a_trainer_that_does_not_divide_is_made_exact_by_the_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the trainer makes its folder
    (found,) = findings(CHECKED / "bert.py")
    assert (found.code, found.evidence["weights_add_up_to"]) == ("GG102", 4)
    source = (CHECKED / "bert.py").read_text("utf-8").splitlines()
    assert source[found.line - 1] == "trainer.train()"
    edited = tmp_path / "edited.py"
    edited.write_text("\n".join(apply(source, edits_for(found))), "utf-8")
    assert findings(edited) == []
    shown = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for said in (found.message, *difference(source, edited.read_text("utf-8").splitlines())):
        assert said in shown


def difference(before: list[str], after: list[str]) -> list[str]:
    return [line for line in after if line not in before]
