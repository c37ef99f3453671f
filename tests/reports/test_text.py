"""Reports for people, as whole texts."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from gradgate.reports import Report, Summary, show, to_text
from tests.reports.made import SUMMARY, finding, report


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_report_shows_each_finding_with_its_line_and_then_what_was_watched(tmp_path: Path) -> None:
    text = str(report(tmp_path))
    assert (
        text
        == """\
── train.py ────────────────────────────────────────────────────────────────────────────

train.py:6  error  GG101 accumulation-window, 2 times

       4 │ loss = criterion(model(x), y) / 4
       5 │ loss.backward()
  ❱    6 │ if i % 4 == 0:
       7 │     optimizer.step()
       8 │     optimizer.zero_grad()

  The first step uses 1 micro-batch, the others 4; 3 at the end are never used.
  why  Gradients that no step uses are lost, and a window that holds more or fewer of
       them than it is divided by has the wrong size.
  fix  Step when (i + 1) % 4 == 0:
           if (i + 1) % 4 == 0:

train.py:10  note  GG402 scheduler-cadence

       8 │         optimizer.zero_grad()
       9 │
  ❱   10 │ scheduler.step()  # gradgate: ignore[GG401]
      11 │ optimizer.step()  # gradgate: ignore

  The first step uses 1 micro-batch, the others 4; 3 at the end are never used.
  why  Gradients that no step uses are lost, and a window that holds more or fewer of
       them than it is divided by has the wrong size.
  fix  Once.

────────────────────────────────────────────────────────────────────────────────────────
Found 1 error and 1 note.
watched  30 steps, 120 backward calls (4 for each step)
         optimizer (AdamW): 62 parameters with 1,204,233 numbers
         in no optimizer: 1 parameter with 10 numbers
took     12.3 s, 4% of it spent on watching"""
    )


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (
            {},
            "No mistakes found.\n"
            "watched  30 steps, 120 backward calls (4 for each step)\n"
            "took     12.3 s, 4% of it spent on watching",
        ),
        (
            {"outcome": "stopped", "processes": 2, "seconds": 200.0, "silenced": 1},
            "No mistakes found.\n"
            "watched  30 steps, 120 backward calls (4 for each step) in each of 2 processes; ended by\n"
            "         --max-steps\n"
            "took     3 min 20 s, 0% of it spent on watching\n"
            "silenced 1 finding, by `# gradgate: ignore`",
        ),
        (
            {"outcome": "failed", "backwards": 31, "processes": 2, "equal": False, "seconds": 7500.0},
            "train.py failed after 30 steps. Until then no mistake was seen.\n"
            "watched  30 steps, 31 backward calls in the longest of 2 processes\n"
            "took     2 h 5 min, 0% of it spent on watching",
        ),
        ({"outcome": "failed", "steps": 0, "backwards": 0}, "train.py failed before training began."),
        (
            {"outcome": "interrupted", "steps": 1, "backwards": 1},
            "train.py was interrupted after 1 step. Until then no mistake was seen.\n"
            "watched  1 step, 1 backward call\n"
            "took     12.3 s, 4% of it spent on watching",
        ),
        (
            {"steps": 0, "backwards": 0},
            "Nothing to judge: train.py made no backward call and no optimizer step.",
        ),
    ],
)
def test_the_end_says_how_it_went_and_what_was_watched(summary: dict[str, object], text: str) -> None:
    bare = replace(SUMMARY, optimizers=(), unowned=None)
    assert str(Report("train.py", (), replace(bare, **summary))) == text  # type: ignore[arg-type]


def test_a_failure_comes_with_what_was_found_until_then(tmp_path: Path) -> None:
    assert "\ntrain.py failed after 30 steps. Until then: 1 error and 1 note.\n" in str(
        report(tmp_path, outcome="failed")
    )


def test_a_finding_whose_source_cannot_be_read_is_shown_without_it() -> None:
    lines = str(Report("", (finding("/nowhere/train.py"),), Summary(1, 1, 1.0, 0.0))).splitlines()
    assert lines[2:5] == [
        "/nowhere/train.py:6  error  GG101 accumulation-window, 2 times",
        "",
        "  The first step uses 1 micro-batch, the others 4; 3 at the end are never used.",
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    assert max(map(len, to_text(report(tmp_path), width=width).splitlines())) == width


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_shown_colours_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.text import Text

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    show(report(tmp_path), terminal)
    assert "\x1b[1;31m" in terminal.getvalue()  # the error, in red
    assert Text.from_ansi(terminal.getvalue()).plain.split() == str(report(tmp_path)).split()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    show(report(tmp_path), terminal)
    assert terminal.getvalue() == str(report(tmp_path)) + "\n"


def test_a_stream_that_knows_ascii_only_gets_ascii(tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    show(report(tmp_path), stream)
    stream.flush()
    assert b"\n  >    6 | if i % 4 == 0:\n" in raw.getvalue()
