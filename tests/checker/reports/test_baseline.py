"""What is known is not told again: findings are recognised whatever happens around their line."""

import json
import linecache
from pathlib import Path

import pytest

# private: what is read of a source is kept, and here the source changes
from gradgate.checker.analysis._source import path_to, tree_of
from gradgate.checker.reports import fingerprint, read_baseline, to_json, to_sarif, write_baseline
from gradgate.errors import OptionError
from tests.checker.reports.made import finding, report

LOOP = """\
def train(model):
    for x in loader:
        model(x).backward()
        optimizer.step()
    model(x).backward()
"""


def of_line(folder: Path, text: str, line: int, **changes: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.py"
    path.write_text(text, "utf-8")
    linecache.clearcache()
    tree_of.cache_clear()
    path_to.cache_clear()
    return fingerprint(finding(path, line, **changes))


def test_a_finding_is_recognised_after_the_file_has_changed_around_it(tmp_path: Path) -> None:
    first = of_line(tmp_path, LOOP, 3)
    moved = "import torch\n\n\n" + LOOP.replace("for x in loader:", "for x in loader:\n        x = x + 0")
    assert of_line(tmp_path, moved, 7) == first
    assert of_line(tmp_path, LOOP.replace("backward()", "backward()  # sums up"), 3) == first
    assert of_line(tmp_path / "elsewhere", LOOP, 3) == first


def test_other_findings_are_told_apart(tmp_path: Path) -> None:
    first = of_line(tmp_path, LOOP, 3)
    others = {
        of_line(tmp_path, LOOP, 5),  # the same text, later in the same function
        of_line(tmp_path, LOOP, 3, code="GG201"),
        of_line(tmp_path, LOOP.replace("def train", "def test"), 3),
        of_line(tmp_path, LOOP.replace("model(x).b", "model(2 * x).b"), 3),
    }
    assert first not in others
    assert len(others) == 4


def test_a_path_is_that_from_the_root_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert of_line(tmp_path / "a", LOOP, 3) != of_line(tmp_path / "b", LOOP, 3)


def test_json_and_sarif_name_the_same_fingerprint(tmp_path: Path) -> None:
    made = report(tmp_path)
    expected = [fingerprint(each) for each in made.findings]
    assert [each["fingerprint"] for each in json.loads(to_json(made))["findings"]] == expected
    results = json.loads(to_sarif(made))["runs"][0]["results"]
    assert [each["partialFingerprints"] for each in results] == [{"gradgate/v2": each} for each in expected]


def test_a_baseline_is_read_as_it_was_written_and_can_be_reviewed(tmp_path: Path) -> None:
    made, path = report(tmp_path), tmp_path / "known.json"
    write_baseline(path, made.findings)
    assert read_baseline(path, where="check") == set(map(fingerprint, made.findings))
    first = json.loads(path.read_text("utf-8"))["findings"][0]
    assert (first["code"], first["file"], first["line"]) == ("GG101", "train.py", "if i % 4 == 0:")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a baseline (JSONDecodeError: "),
        ("[]", "is not a baseline (TypeError: "),
        (
            '{"version": 9, "findings": []}',
            "is not a baseline (ValueError: version 9, this gradgate reads 1)",
        ),
        (None, "there is no baseline"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "known.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(OptionError) as caught:
        read_baseline(path, where="check")
    assert why in str(caught.value)
    assert f"gradgate check --write-baseline {path} ..." in str(caught.value)
