"""docs/incidents.md: each incident has a script, which the checker finds by the code that the page names."""

import re
from pathlib import Path

import pytest

from corpus.scripts import FOLDER
from tests import test_scripts

PAGE = Path(__file__).parents[1] / "docs" / "incidents.md"
ROWS = re.findall(r"^\|.*\| (GG\d+) \| `([\w/-]+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def test_the_page_has_incidents() -> None:
    assert len(ROWS) == PAGE.read_text("utf-8").count("\n| ") - 1


@pytest.mark.parametrize(("code", "script"), ROWS, ids=[script for _, script in ROWS])
def test_an_incident_is_found_at_its_line(code: str, script: str) -> None:
    row = test_scripts.ROWS[FOLDER / "wrong" / f"{script}.py"]
    assert row.code == code
    # So tests/test_scripts.py runs it, and asserts that its finding is at a line that it marks.
    assert row.regression
    assert row.gradgate.keys().isdisjoint({"missed", "other_line"})
