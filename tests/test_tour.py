"""The tour, followed word for word: its blocks in one file, its script under the checker, what they print."""

import re
from pathlib import Path

import pytest

from tests.interpreter import python
from tests.pages import ROOT, Block, blocks

TOURS = [ROOT / "docs/tour.md", ROOT / "docs/tour.zh-CN.md"]
END_OF_BLOCK = "---- end of a block ----"


def stable(text: str) -> list[str]:
    """Return the lines, without what another machine may do otherwise: rounding errors, seconds, per cents."""
    return re.sub(r"\de-1[5-7]\b|\d+\.\d s, \d+%", "*", text.strip()).splitlines()


def described(tour: Path) -> list[Block]:
    return [block for block in blocks(tour) if block.language in ("python", "text", "py", "console")]


@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.name)
def test_the_blocks_of_the_tour_print_what_is_shown(tour: Path, tmp_path: Path) -> None:
    shown: list[str] = []
    script: list[str] = []
    for block in described(tour):
        if block.language == "python":
            script.append(block.text)
            shown.append("")
        elif block.language == "text":
            shown[-1] = block.text
    # As the reader does, one empty line between blocks; the marks stand on it, so that lines keep their numbers.
    (tmp_path / "tour.py").write_text(f"print({END_OF_BLOCK!r})\n".join(script), "utf-8")
    done = python("-W", "error", "tour.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = done.stdout.split(END_OF_BLOCK)
    assert [stable(one) for one in printed] == [stable(one) for one in shown]


@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.name)
def test_the_wrong_script_of_the_tour_is_found_and_its_fixed_line_is_right(
    tour: Path, tmp_path: Path
) -> None:
    script, fixed = (block.text for block in described(tour) if block.language == "py")
    wrong, right = (
        block.text.partition("\n")[2]
        for block in described(tour)
        if block.text.startswith("$ gradgate check train.py\n")
    )
    lines = script.splitlines()
    assert lines[20].strip() == "if i % ACCUMULATE == 0:"  # the line that the text tells to change: 21
    for code, shown in ((1, wrong), (0, right)):
        (tmp_path / "train.py").write_text("\n".join(lines) + "\n", "utf-8")
        done = python("-m", "gradgate", "check", "train.py", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert stable(done.stdout) == stable(shown)
        lines[20] = fixed.rstrip()
