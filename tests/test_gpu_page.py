"""The command that measures on a GPU: its parts run without one where they can, and its figures get on the page."""

import re
from pathlib import Path

import pytest

from tests.interpreter import python

ROOT = Path(__file__).parents[1]
SECTION = "NVIDIA H200, torch 2.13.0.\n\n### Plans\n\n| model | ratio |\n|---|---|\n| CNN | 1.031 |\n"
LINK = "\n[cnn.py](../benchmarks/cnn.py)\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    page = tmp_path / "docs" / "performance.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text("utf-8"), "utf-8")
    return page


def test_a_run_replaces_the_section_between_the_markers(page: Path) -> None:
    from _gpu_page import written

    before = page.read_text("utf-8")
    for ratio in ("1.031", "2.062"):
        result = written(SECTION.replace("1.031", ratio) + LINK, page.parents[1])
        text = page.read_text("utf-8")
        assert "[Result](../benchmarks/results/gpu.md): NVIDIA H200" in text
        assert f"| CNN | {ratio} |" in text
        assert f"| CNN | {ratio} |" in result.read_text("utf-8")
        assert result.name == "gpu.md"
        assert "[cnn.py](../cnn.py)" in result.read_text("utf-8")
    assert "1.031" not in text
    outside = re.compile(r"(?s)<!-- gpu: begin -->.*<!-- gpu: end -->")
    assert outside.sub("", text) == outside.sub("", before)


@pytest.mark.parametrize("broken", ["", "<!-- gpu: begin --> <!-- gpu: begin --> <!-- gpu: end -->"])
def test_a_page_without_markers_is_left_as_it_is(page: Path, broken: str) -> None:
    from _gpu_page import written

    page.write_text(broken, "utf-8")
    with pytest.raises(ValueError, match="needs the markers"):
        written(SECTION, page.parents[1])
    assert page.read_text("utf-8") == broken
    assert not list((page.parents[1] / "benchmarks" / "results").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("tests", ["GPU-marked tests: not run: no GPU"]),
        ("plans", ["| transformer, 2 |", "| CNN, 8 |", "| LSTM, 8 |", "| 1.000 | not run | no GPU |"]),
        ("graphs", ["| `make_graphed_callables` | not run: no GPU | not run: no GPU |"]),
    ],
)
def test_a_part_runs_without_a_gpu(part: str, rows: list[str]) -> None:
    done = python(ROOT / "benchmarks" / "gpu.py", "--part", part, "--device", "cpu", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for row in rows:
        assert row in done.stdout
