"""Reports written to files."""

import json
from pathlib import Path

import pytest

from gradgate.errors import OptionError
from gradgate.reports import report_on, save, to_text


def test_the_ending_says_how_a_report_is_written(tmp_path: Path) -> None:
    report = report_on([], script="train.py")
    for name in ("report.json", "report.sarif", "report.txt"):
        save(report, tmp_path / name)
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["script"] == "train.py"
    assert json.loads((tmp_path / "report.sarif").read_text("utf-8"))["version"] == "2.1.0"
    assert (tmp_path / "report.txt").read_text("utf-8") == to_text(report) + "\n"


def test_a_path_that_says_nothing_or_leads_nowhere_is_refused(tmp_path: Path) -> None:
    report = report_on([])
    with pytest.raises(
        OptionError, match=r"save: 'report' has no ending that names a format. Let it end in .json"
    ):
        save(report, "report")
    with pytest.raises(OptionError, match=r"there is no folder .*missing\. Make it first"):
        save(report, tmp_path / "missing" / "report.txt")
