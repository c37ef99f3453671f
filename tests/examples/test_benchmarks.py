"""The benchmarks: they import, and each result is listed and belongs to a program that can write it again."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(BENCHMARKS.glob("[!_]*.py"))
RESULTS = sorted((BENCHMARKS / "results").glob("*.md"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_benchmark_imports(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert "main" in runpy.run_path(str(program), run_name="imported")


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.stem)
def test_a_result_is_listed_and_names_the_program_that_writes_it(result: Path) -> None:
    assert f"(results/{result.name})" in (BENCHMARKS / "README.md").read_text("utf-8")
    assert f"`python benchmarks/{result.stem}.py" in result.read_text("utf-8")


def test_a_rerun_replaces_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _alternate

    monkeypatch.setattr(_alternate, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks/peak_memory.py", "--write"])
    for figure in ("1.0", "2.0"):
        _alternate.report("Memory", [figure], write=True)
    (written,) = tmp_path.iterdir()
    assert written.name == "peak_memory.md"
    assert written.read_text("utf-8").endswith("\n2.0")
