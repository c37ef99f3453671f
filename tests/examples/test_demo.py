"""The demo: what it prints and draws is so."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from matplotlib.image import imread

from examples.demo_parts.compare import Comparison
from examples.demo_parts.measure import Run
from examples.demo_parts.table import in_words
from tests.interpreter import python

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
TASKS = 2

# Rounding of the default dtype (2e-16), times 10,000: Adam divides each entry of the gradient by its own
# size, so small entries carry the rounding of the large ones.
TOLERANCE = 1e4 * torch.finfo(torch.float64).eps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(folder):
    """What a quick run prints; its picture lies in ``folder``. Warnings are errors there too."""
    # What rich would take as a wish for another width, or for colours where there is no terminal.
    wishes = {"COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    env = {name: value for name, value in os.environ.items() if name not in wishes}
    run = python("-W", "error", DEMO, "--quick", "--output", "demo.png", cwd=folder, env=env, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def numbers(shown, row, unit=""):
    """Return the numbers of each row that begins like this, without those marked as missing."""
    rows = re.findall(rf"^{row}.*$", shown, re.MULTILINE)
    return [
        [float(n) for n in re.findall(rf" (\d\S*){unit}(?= |$)", line.removeprefix(row))] for line in rows
    ]


def test_gradgate_stays_within_rounding_of_the_whole_batch_and_the_hand_written_loop_does_not(shown):
    rows = numbers(shown, r"distance after epoch \d")
    assert len(rows) == 2 * TASKS
    for _epoch, gradgate, by_hand in rows:
        assert gradgate < TOLERANCE
        assert by_hand > 1e6 * TOLERANCE


def test_the_whole_batch_needs_several_times_the_memory_of_its_micro_batches(shown):
    rows = numbers(shown, "peak memory", unit=" MiB")
    assert len(rows) == TASKS
    for whole, gradgate, by_hand in rows:
        assert whole > 3 * gradgate
        assert gradgate == pytest.approx(by_hand, rel=0.05)


def test_without_a_terminal_lines_are_short_and_free_of_control_characters(shown):
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", shown) == []


def test_the_picture_shows_both_colours_on_white(shown, folder):
    picture = imread(folder / "demo.png")  # fails unless it is a whole PNG
    height, width, _ = picture.shape
    assert height > 800
    assert width > 1200
    colours = (picture[..., :3] * 255).round().astype(int)
    for colour in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):  # gradgate, by hand
        assert (colours == colour).all(-1).sum() > 5000  # more than a line: the bar as well
    assert (colours == 255).all(-1).mean() > 0.5


def test_the_words_follow_the_numbers_and_not_the_hope():
    far = Run([torch.zeros(1, dtype=torch.float64)] * 2, seconds=1.0, peak_bytes=100, score=0.5)
    task = SimpleNamespace(score_name="accuracy", score_format=".0%", updates_per_epoch=1)
    good = Comparison(task, far, far, far, gradgate_distance=[TOLERANCE / 2], by_hand_distance=[0.1])
    bad = Comparison(task, far, far, far, gradgate_distance=[TOLERANCE * 2], by_hand_distance=[0.1])
    assert (good.exact, bad.exact) == (True, False)
    assert "no more than rounding in float64" in in_words(good)
    assert "MORE THAN ROUNDING EXPLAINS in float64" in in_words(bad)


def test_the_plan_computes_fewer_columns_in_the_same_memory(shown):
    said = r"Columns to compute: (\d+) by hand, (\d+) by plan, for (\d+) characters"
    by_hand, by_plan, characters = map(int, re.search(said, " ".join(shown.split())).groups())
    assert characters < by_plan < by_hand
    used = int(re.search(r"^peak .*\((\d+)% of the budget\)", shown, re.MULTILINE)[1])
    assert 80 < used <= 100
