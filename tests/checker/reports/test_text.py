"""Reports for people, as whole texts."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from gradgate.checker.fixes import Insert, Replace
from gradgate.checker.reports import Report, Summary, show, to_text

# private: every colour in use has enough contrast
from gradgate.checker.reports._text import _STYLES
from tests.checker.reports.made import SUMMARY, finding, report


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

  The first step uses 1 micro-batch, other steps use 4; 3 at the end are never used.
  why  Gradients that no step uses are lost, and a window whose number of micro-batches
       differs from its divisor gives a gradient of the wrong size.
  fix  Step when (i + 1) % 4 == 0:
           if (i + 1) % 4 == 0:

  -    6 │ if i % 4 == 0:
  +      │ if (i + 1) % 4 == 0 or i + 1 == len(loader):

  see  gradgate explain GG101

train.py:10  note  GG402 scheduler-cadence

       8 │         optimizer.zero_grad()
       9 │
  ❱   10 │ scheduler.step()  # gradgate: ignore[GG401]
      11 │ optimizer.step()  # gradgate: ignore

  The first step uses 1 micro-batch, other steps use 4; 3 at the end are never used.
  why  Gradients that no step uses are lost, and a window whose number of micro-batches
       differs from its divisor gives a gradient of the wrong size.
  fix  Once.

  see  gradgate explain GG402

────────────────────────────────────────────────────────────────────────────────────────
Found 1 error and 1 note.
watched  30 steps, 120 backward calls (4 for each step)
         optimizer (AdamW): 62 tensors, 1,204,233 parameters
         in no optimizer: 1 tensor, 10 parameters
took     12.3 s, 4% of it spent on watching"""
    )


def test_the_command_that_explains_a_rule_stands_once_below_its_last_finding(tmp_path: Path) -> None:
    made = report(tmp_path)
    findings = tuple(replace(made.findings[0], line=line) for line in (4, 6, 7))
    failed = replace(made.findings[0], line=8, code="GG000")
    text = str(replace(made, findings=(*findings, failed)))
    assert text.count("  see  gradgate explain GG101\n") == 1
    assert text.index("train.py:7") < text.index("see  gradgate explain GG101") < text.index("train.py:8")
    assert "explain GG000" not in text  # which has no page


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
            "watched  30 steps, 120 backward calls (4 for each step) in each of 2 processes; stopped\n"
            "         early\n"
            "took     3 min 20 s, 0% of it spent on watching\n"
            "silenced 1 finding, by `# gradgate: ignore`",
        ),
        (
            {"outcome": "failed", "backwards": 31, "processes": 2, "equal_counts": False, "seconds": 7500.0},
            "train.py failed after 30 steps. No mistakes found up to that point.\n"
            "watched  30 steps, 31 backward calls in the longest of 2 processes\n"
            "took     2 h 5 min, 0% of it spent on watching",
        ),
        (
            {"processes": 2, "ended_apart": 6},
            "No mistakes found.\n"
            "watched  30 steps, 120 backward calls (4 for each step) in each of 2 processes; 6\n"
            "         tensors ended with different values on the ranks\n"
            "took     12.3 s, 4% of it spent on watching",
        ),
        (
            {"steps": 2, "backwards": 2, "too_short": True},
            "No mistakes found, but this run is too short: some rules need 8 steps.\n"
            "watched  2 steps, 2 backward calls\n"
            "took     12.3 s, 4% of it spent on watching",
        ),
        ({"outcome": "failed", "steps": 0, "backwards": 0}, "train.py failed before training began."),
        (
            {"outcome": "interrupted", "steps": 1, "backwards": 1},
            "train.py was interrupted after 1 step. No mistakes found up to that point.\n"
            "watched  1 step, 1 backward call\n"
            "took     12.3 s, 4% of it spent on watching",
        ),
        (
            {"steps": 0, "backwards": 0},
            "Nothing to check: train.py ran no backward call and no optimizer step.",
        ),
    ],
)
def test_the_end_says_how_it_went_and_what_was_watched(summary: dict[str, object], text: str) -> None:
    bare = replace(SUMMARY, optimizers=(), unowned=None)
    assert str(Report("train.py", (), replace(bare, **summary))) == text  # type: ignore[arg-type]


def test_a_failure_comes_with_what_was_found_until_then(tmp_path: Path) -> None:
    assert "\ntrain.py failed after 30 steps. Found up to that point: 1 error and 1 note.\n" in str(
        report(tmp_path, outcome="failed")
    )


def test_a_finding_whose_source_cannot_be_read_is_shown_without_it() -> None:
    lines = str(Report("", (finding("/nowhere/train.py"),), Summary(1, 1, 1.0, 0.0))).splitlines()
    assert lines[2:5] == [
        "/nowhere/train.py:6  error  GG101 accumulation-window, 2 times",
        "",
        "  The first step uses 1 micro-batch, other steps use 4; 3 at the end are never used.",
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


# The six colours, each as it is and bright, as terminals have them.
PALETTES = {
    "xterm": ("cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd", "ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff"),
    "vga": ("aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa", "ff5555 55ff55 ffff55 5555ff ff55ff 55ffff"),
    "gnome": ("c01c28 26a269 a2734c 12488b a347ba 2aa1b3", "f66151 33da7a e9ad0c 2a7bde c061cb 33c7de"),
    "macos": ("c23621 25bc24 adad27 492ee1 d338d3 33bbc8", "fc391f 31e722 eaec23 5833ff f935f8 14f0f0"),
    "vscode": ("cd3131 0dbc79 e5e510 2472c8 bc3fbc 11a8cd", "f14c4c 23d18b f5f543 3b8eea d670d6 29b8db"),
    "windows": ("c50f1f 13a10e c19c00 0037da 881798 3a96dd", "e74856 16c60c f9f1a5 3b78ff b4009e 61d6d6"),
}
COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan")
READABLE = 2.5  # contrast of bold text; yellow, green and cyan go down to 1.1 on white, blue to 1.6 on black


def _light(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue  # WCAG 2, relative luminance


def _least_contrast(colour: str) -> float:
    """Return the contrast on white or black in the worst palette, where bold may make a colour bright."""
    name = colour.removeprefix("bright_")
    kinds = (1,) if name != colour else (0, 1)
    lights = [
        _light(palette[kind].split()[COLOURS.index(name)]) for palette in PALETTES.values() for kind in kinds
    ]
    return min(min(1.05 / (light + 0.05), (light + 0.05) / 0.05) for light in lights)


def test_colours_can_be_read_on_a_light_ground_and_on_a_dark_one() -> None:
    used = {word for style in _STYLES.values() for word in style.split()} - {"bold", "dim"}
    assert used
    assert {colour: _least_contrast(colour) for colour in used if _least_contrast(colour) < READABLE} == {}
    poor = {colour for colour in COLOURS if _least_contrast(colour) < READABLE}
    assert poor == {"green", "yellow", "blue", "cyan"}


def test_only_what_can_be_done_without_is_dim() -> None:
    assert {part for part, style in _STYLES.items() if "dim" in style} == {"rule", "gutter", "-", "help"}


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


def test_what_is_to_be_written_is_shown_whole_and_only_where_it_is_short(tmp_path: Path) -> None:
    long, short = tmp_path / "long.py", tmp_path / "short.py"
    long.write_text("h = x\n", "utf-8")
    short.write_text(f"h = {'f' * 99}(x)\n", "utf-8")
    block = "\n".join(f"h = layer_{n}(h)" for n in range(9))
    fixes = {long: Insert(block, after=1), short: Replace(1, "x", "h")}
    changes = {"code": "GG402", "message": "Running without gradients cuts", "advice": "Take the value."}
    files = fixes.items()
    shown = [str(Report("", (finding(file, 1, fix=(fix,), **changes),), SUMMARY)) for file, fix in files]
    assert ["+      │ h = " in text for text in shown] == [False, True]
    assert f"  +      │ h = {'f' * 99}(h)\n" in shown[1]
    assert f"  -    1 │ h = {'f' * 99}(x)\n" in shown[1]  # a patch shows both lines whole
