"""The scorer of the corpus: what a checker is given, how it is run, and what is counted."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from corpus import add_set, score
from corpus.scripts import FOLDER, Script, marked_lines, scripts
from corpus.tools import TOOLS, Alarm, Tool, tool_named

LEAK = """\
\"\"\"The sum keeps every graph,
so memory grows.\"\"\"
import torch

w = torch.ones(1, requires_grad=True)
total = sum(
    w.square()  # expect: graph-retention
    for _ in range(3)
)
print(total)
"""


def a_script(folder: Path, text: str, name: str = "wrong/graph-retention/first") -> Script:
    class Here(Script):
        path = folder / f"{name}.py"

    Here.path.parent.mkdir(parents=True, exist_ok=True)
    Here.path.write_text(text, "utf-8")
    kind = {"category": "graph-retention"} if "wrong" in name else {"topic": "data"}
    return Here(name, "project", **kind)


def test_every_line_of_a_marked_statement_is_marked() -> None:
    assert marked_lines(LEAK) == dict.fromkeys(range(6, 10), "graph-retention")


def test_a_checker_gets_copies_without_marks_and_docstrings_that_have_the_same_lines(tmp_path: Path) -> None:
    copy = a_script(tmp_path, LEAK).without_hints()
    kept = LEAK.splitlines()
    kept[:2], kept[6] = ["", ""], "    w.square()"
    assert copy.splitlines() == kept


def test_a_set_has_its_scripts_and_the_regression_set_is_a_part() -> None:
    own, chosen = scripts("own"), scripts("regression")
    assert {script.set for script in own} == {"own"}
    assert 150 <= len(chosen) <= 250
    assert {script.script for script in chosen} < {script.script for script in own}
    assert scripts("no such set") == []


def reports(script: Path) -> list[Alarm]:
    """Report what the first line of a script asks for."""
    match script.read_text("utf-8").splitlines()[0]:
        case "# line":
            return [Alarm(2, "graph-retention")]
        case "# note":
            return [Alarm(2, "graph-retention", is_note=True), Alarm(2, "accumulation-window", is_note=True)]
        case "# elsewhere":
            return [Alarm(0)]
        case "# other note":
            return [Alarm(2, "accumulation-window", is_note=True)]
        case "# ends":
            os._exit(3)
        case "# hangs":
            time.sleep(60)
        case "# fails":
            raise ValueError("no")
    return []


def test_each_script_runs_in_a_process_of_its_own_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "PATIENCE", 5)
    firsts = ["line", "note", "elsewhere", "other note", "ends", "hangs", "fails"]
    body = "\nx = 1  # expect: graph-retention\n"
    chosen = [a_script(tmp_path, f"# {first}{body}", f"wrong/a/{first}") for first in firsts]
    chosen += [a_script(tmp_path, f"# {first}\nx = 1\n", f"right/a/{first}") for first in ("line", "note")]
    outcomes = score.check(Tool("torch", watch=reports), chosen, jobs=2)
    assert set(outcomes) == {script.script for script in chosen}
    assert {name: outcome.failed for name, outcome in outcomes.items() if outcome.failed} == {
        "wrong/a/ends": "the process ended without a result",
        "wrong/a/hangs": "it ran for more than 5 seconds",
        "wrong/a/fails": "ValueError('no')",
    }
    figures = score.counts(chosen, outcomes)
    wrong = {"scripts": 7, "found": 2, "on the line": 1, "only a note": 1, "failed": 3}
    right = {"scripts": 2, "accused": 1, "failed": 0}
    assert figures == {
        "wrong": {"graph-retention": wrong, "all": wrong},
        "right": {"data": right, "all": right},
    }
    assert score.table(figures) == (
        "| wrong scripts | found | on the line | only a note | failed |\n"
        "|---|---|---|---|---|\n"
        "| 7 graph-retention | 2 | 1 | 1 | 3 |\n"
        "| 7 all | 2 | 1 | 1 | 3 |\n"
        "\n"
        "| right scripts | accused | failed |\n"
        "|---|---|---|\n"
        "| 2 data | 1 | 0 |\n"
        "| 2 all | 1 | 0 |"
    )


def test_a_tool_that_reads_source_gets_one_folder(tmp_path: Path) -> None:
    chosen = [a_script(tmp_path, LEAK), a_script(tmp_path, "x = 1\n", "right/a/first")]

    def read(folder: Path) -> list[tuple[Path, Alarm]]:
        return [(file, Alarm(7)) for file in folder.rglob("*.py") if "square" in file.read_text("utf-8")]

    outcomes = score.check(Tool("torch", read=read), chosen, jobs=1)
    assert {name: len(outcome.alarms) for name, outcome in outcomes.items()} == {
        "wrong/graph-retention/first": 1,
        "right/a/first": 0,
    }


def test_gradgate_finds_what_it_finds_and_the_score_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [chosen] = [each for each in scripts() if each.script == "wrong/broken-graph/beta_vae"]
    monkeypatch.setattr(score, "scripts", lambda _: [chosen])
    file = tmp_path / "score.json"
    monkeypatch.setattr(sys, "argv", ["score", "gradgate", "--jobs", "1", "--json", str(file)])
    score.main()
    assert "| 1 all | 1 | 1 | 0 | 0 |" in capsys.readouterr().out
    told = json.loads(file.read_text("utf-8"))
    assert told["figures"]["wrong"]["all"]["on the line"] == 1
    [alarm] = told["scripts"][chosen.script]["alarms"]
    assert alarm["category"] == "broken-graph"


def test_each_public_bug_has_a_script_and_pinned_versions() -> None:
    bugs = json.loads((FOLDER / "public" / "bugs.json").read_text("utf-8"))
    assert {bug["script"] for bug in bugs} == {file.stem for file in (FOLDER / "public").glob("*.py")}
    for bug in bugs:
        pinned = [*bug["wrong"], *bug["right"], *bug["both"]]
        assert all("==" in requirement for requirement in pinned), bug["script"]
        assert bug["wrong"] != bug["right"]


def test_a_tool_is_in_the_table_or_a_function() -> None:
    assert tool_named("gradgate") is TOOLS["gradgate"]
    assert tool_named("corpus.tools:plain").watch is TOOLS["plain"].watch
    with pytest.raises(SystemExit, match=r"there is no tool 'ruff'\. Name one of gradgate, "):
        tool_named("ruff")


def test_a_new_set_gets_rows_with_its_first_contact_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (sys.modules["corpus.scripts"], add_set):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
        monkeypatch.setattr(module, "INDEX", tmp_path / "index.jsonl")
    (tmp_path / "index.jsonl").touch()
    text = "x = 1  # expect: whatever it is\n"
    for name, first in {
        "wrong/a": "line",
        "wrong/b": "elsewhere",
        "wrong/c": "note",
        "right/a": "note",
    }.items():
        a_script(tmp_path, f"# {first}\n{text if 'wrong' in name else ''}", f"unseen/new/{name}")
    monkeypatch.setitem(add_set.TOOLS, "gradgate", Tool("torch", watch=reports))
    monkeypatch.setattr(sys, "argv", ["add_set", "new"])
    add_set.main()
    assert "| 3 | 2 | 1 | 0 of 1 |" in capsys.readouterr().out
    rows = {row.script: row for row in scripts("new")}
    assert {name: row.first_contact for name, row in rows.items()} == {
        "unseen/new/right/a": "silent",
        "unseen/new/wrong/a": "on the line",
        "unseen/new/wrong/b": "found",
        "unseen/new/wrong/c": "missed",
    }
    assert rows["unseen/new/wrong/a"].twin == "unseen/new/right/a"
    assert rows["unseen/new/wrong/b"].twin == ""
    with pytest.raises(SystemExit, match="a first contact happens once"):
        add_set.main()
