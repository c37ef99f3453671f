"""Reports written to files."""

import importlib.util
import json
from pathlib import Path

import pytest

from gradgate.checker.reports import checked_path, report_on, to_text
from gradgate.errors import OptionError
from tests.messages import raises


def test_the_extension_says_how_a_report_is_written(tmp_path: Path) -> None:
    report = report_on([], script="train.py")
    for name in ("report.json", "report.sarif", "report.txt"):
        report.save(tmp_path / name)
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["script"] == "train.py"
    assert json.loads((tmp_path / "report.sarif").read_text("utf-8"))["version"] == "2.1.0"
    assert (tmp_path / "report.txt").read_text("utf-8") == to_text(report) + "\n"


def test_a_path_without_a_format_or_a_folder_is_refused(tmp_path: Path) -> None:
    report = report_on([])
    with raises(OptionError, "a report of an unknown format"):
        report.save("report")
    with raises(OptionError, "a report in a missing folder", "report.txt"):
        report.save(tmp_path / "missing" / "report.txt")


def test_a_package_that_the_page_needs_is_missed_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else found(name))
    with raises(OptionError, "a page without plotly", "WatchGradients:"):
        checked_path(tmp_path / "report.html", where="WatchGradients")
    assert checked_path(tmp_path / "report.sarif", where="WatchGradients").name == "report.sarif"
