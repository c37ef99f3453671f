"""docs/incidents.md: each incident has a script, which the checker finds by the code that the page names."""

import re
from pathlib import Path

import pytest

from gradgate.checker.rules import rules
from tests.test_scripts import MISSED, OTHER_LINE, SCRIPTS, at_a_mark, name, run

PAGE = Path(__file__).parents[1] / "docs" / "incidents.md"
ROWS = re.findall(r"^\|.*\| (GG\d+) \| `([\w/-]+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def test_the_page_has_incidents() -> None:
    assert len(ROWS) == PAGE.read_text("utf-8").count("\n| ") - 1


@pytest.mark.parametrize(("code", "script"), ROWS, ids=[script for _, script in ROWS])
def test_an_incident_is_found_at_its_line(
    code: str, script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.chdir(tmp_path)
    path = SCRIPTS / "wrong" / f"{script}.py"
    assert name(path) not in {**MISSED, **OTHER_LINE}
    assert {rule.name: rule.code for rule in rules()}[path.parent.name] == code
    assert any(
        finding.code == code and at_a_mark(finding, path) for finding in run(path, watch=True).findings
    )
