"""Wrong calls of ``watch``, of reports and of baselines."""

import importlib.util
from pathlib import Path
from unittest import mock

import gradgate as gg
from gradgate.checker.reports import checked_path, read_baseline, report_on, selection


def started_twice() -> None:
    with gg.watch() as watching:
        watching.start()


def page_without_plotly() -> None:
    found = importlib.util.find_spec
    with mock.patch("importlib.util.find_spec", lambda name: None if name == "plotly" else found(name)):
        checked_path("report.html", where="check")


def report_over_a_folder() -> None:
    with mock.patch.object(Path, "is_dir", return_value=True):
        report_on([]).save("report.txt")


def old_baseline() -> None:
    text = '{"version": 0, "findings": []}'
    with mock.patch.multiple(Path, is_file=lambda path: True, read_text=lambda path, encoding: text):
        read_baseline(Path("known.json"), where="check")


CASES = {
    "watching for an unknown severity": lambda: gg.watch(raise_on="info"),  # type: ignore[arg-type]
    "watching for an unknown rule": lambda: gg.watch(select="GGX"),
    "ignoring a misspelt rule": lambda: selection(ignore="acumulation-scaling", where="check"),
    "a watch started twice": started_twice,
    "a report of an unknown format": lambda: report_on([]).save("report"),
    "a report in a missing folder": lambda: report_on([]).save(Path("missing") / "report.txt"),
    "a report over a folder": report_over_a_folder,
    "a page without plotly": page_without_plotly,
    "a missing baseline": lambda: read_baseline(Path("known.json"), where="check"),
    "a baseline of another version": old_baseline,
}
