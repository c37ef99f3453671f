"""A mending mends: with its edits made, a wrong script of the corpus gets no warning and no error any more."""

import linecache
import sys
from pathlib import Path

import pytest

from gradgate.checks import Finding, mending
from gradgate.checks._mending import Edit, mended
from tests.test_scripts import WRONG, name, run

CATEGORIES = {
    "accumulation-scaling": 2,
    "accumulation-window": 4,
    "clip-misplaced": 4,
    "cross-loss-leak": 2,
    "graph-retention": 3,
    "missing-zero-grad": 13,
    "scheduler-cadence": 1,
    "train-eval-mode": 1,
    "zero-grad-misplaced": 6,
}


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_a_script_with_its_mending_made_shows_no_mistake(
    category: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.chdir(tmp_path)
    offered = []
    for script in (one for one in WRONG if one.parent.name == category):
        findings = [one for one in run(script, watch=True).findings if one.category == category]
        edits = [edit for finding in findings for edit in mending(finding)]
        if not edits:
            continue
        offered.append(name(script))
        copy = tmp_path / f"{script.stem}.py"
        copy.write_text("\n".join(mended(script.read_text("utf-8").splitlines(), edits)) + "\n", "utf-8")
        left = [finding for finding in run(copy, watch=True).findings if finding.severity != "info"]
        assert left == [], name(script)
    assert len(offered) == CATEGORIES[category], offered


def found(code: str, file: Path, line: int, fix: str = "", message: str = "") -> Finding:
    linecache.checkcache(str(file))
    return Finding(code, "", "error", str(file), line, message, "", fix)


def test_a_condition_that_counts_from_0_counts_from_1(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for i, x in enumerate(loader):\n    if i % N == 0:  # now\n        optimizer.step()\n")
    assert mending(found("GG101", file, 2)) == (
        Edit(2, ("    if (i + 1) % N == 0 or i + 1 == len(loader):  # now",)),
    )


@pytest.mark.parametrize(
    "lines",
    [
        "for i, x in enumerate(loader, 1):\n    if i % N == 0:\n        optimizer.step()\n",  # counts from 1
        "for i, x in enumerate(make()):\n    if i % N == 0:\n        optimizer.step()\n",  # has no length
        "for x in loader:\n    if i % N == 0:\n        optimizer.step()\n",
        "for i, x in enumerate(loader):\n    if j % N == 0:\n        optimizer.step()\n",
        "for i, x in enumerate(loader):\n    if i % N == 0 and x:\n        optimizer.step()\n",
    ],
)
def test_where_the_lines_do_not_say_enough_nothing_is_offered(lines: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(lines)
    assert mending(found("GG101", file, 2)) == ()


def test_a_call_that_clears_too_early_is_moved_behind_the_step(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    lines = ["for x in data:", "    loss(x).backward()", "    opt.zero_grad()", "    opt.step()", "    log()"]
    file.write_text("\n".join(lines) + "\n")
    edits = mending(found("GG202", file, 3))
    assert mended(lines, edits) == [lines[0], lines[1], lines[3], lines[2], lines[4]]


def test_what_cannot_be_read_has_no_mending(tmp_path: Path) -> None:
    assert mending(found("GG101", tmp_path / "gone.py", 3)) == ()
