"""An edit that divides by a number of micro-batches writes the script's name for it, if that is certain."""

from functools import partial
from pathlib import Path

import pytest

# private: an edit writes a name only where its value is certain
from gradgate.checker.rules.accumulation import _divisor_edits
from tests.checker.rules.test_fixes import fixed

LOOP = """\
{before}
def train({given}):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        {inside}
        if {test}:
            count = 0
            optimizer.step()
            optimizer.zero_grad()
"""


def divisor(test: str, folder: Path, *, before: str = "", given: str = "loader", inside: str = "pass") -> str:
    text = LOOP.format(before=before, given=given, inside=inside, test=test)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "backward" in each)
    after = fixed(partial(_divisor_edits.divided, size=4), line, text, folder)
    assert after is not None
    return (
        after.splitlines()[line - 1]
        .strip()
        .removeprefix("(loss_fn(model(x), y) / ")
        .removesuffix(").backward()")
    )


@pytest.mark.parametrize(
    ("test", "name", "options"),
    [
        ("(i + 1) % N == 0", "N", {"before": "N = 4"}),
        ("(i + 1) % N == 0", "N", {"before": "N: int = 4"}),
        ("(i + 1) % N == 0", "N", {"before": "N = batch // micro"}),
        ("(i + 1) % every == 0", "every", {"given": "loader, every"}),
        ("(i + 1) % every == 0 or i + 1 == len(loader)", "every", {"given": "loader, every=4"}),
        ("(i + 1) % self.every == 0", "self.every", {"given": "self, loader"}),
        ("count == N", "N", {"before": "N = 4"}),
        ("due(i)", "N", {"before": "N = 4\ndef due(i):\n    if i % N == 0:\n        optimizer.step()"}),
    ],
)
def test_a_name_that_is_visible_and_has_the_value_is_written(
    test: str, name: str, options: dict[str, str], tmp_path: Path
) -> None:
    assert divisor(test, tmp_path, **options) == name


@pytest.mark.parametrize(
    ("test", "options"),
    [
        ("(i + 1) % 4 == 0", {"before": "classes = 4"}),
        ("(i + 1) % N == 0", {"before": "N = 8"}),
        ("(i + 1) % N == 0", {"before": "N = 4\nN = 8"}),
        ("(i + 1) % N == 0", {"before": "N = 4\nN *= 2"}),
        ("count >= N", {"given": "loader, N"}),  # the counter may count samples
        ("i >= warm_up", {"before": "warm_up = 4"}),
        ("(i + 1) % every == 0", {"given": "loader, every", "inside": "if not x: continue"}),
        ("(i + 1) % every == 0 or late(i)", {"given": "loader, every"}),
        ("due(i)", {"before": "def due(i, N=4):\n    if i % N == 0:\n        optimizer.step()"}),
        ("due(i)", {"before": "def due(i):\n    N = 4\n    if i % N == 0:\n        optimizer.step()"}),
    ],
)
def test_another_name_is_not_written(test: str, options: dict[str, str], tmp_path: Path) -> None:
    assert divisor(test, tmp_path, **options) == "4"
