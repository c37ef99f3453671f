import json
import math
from pathlib import Path

from gradgate.checker.reports import Report, fingerprint, to_json
from tests.checker.reports.made import SUMMARY, finding, report


def test_json_holds_the_findings_the_summary_and_nothing_else(tmp_path: Path) -> None:
    read = json.loads(to_json(report(tmp_path)))
    assert list(read) == ["version", "script", "findings", "summary"]
    assert (read["version"], read["script"]) == (2, "train.py")
    assert read["findings"][0] == {
        "code": "GG101",
        "category": "accumulation-window",
        "severity": "error",
        "file": str(tmp_path / "train.py"),
        "line": 6,
        "message": "The first step uses 1 micro-batch, other steps use 4; 3 at the end are never used.",
        "why": "Gradients that no step uses are lost, and a window whose number of micro-batches differs from "
        "its divisor gives a gradient of the wrong size.",
        "advice": "Step when (i + 1) % 4 == 0:\n    if (i + 1) % 4 == 0:",
        "help": "gradgate explain GG101",
        "count": 2,
        "evidence": {"windows": [1, 4, 4]},
        "fingerprint": fingerprint(finding(tmp_path / "train.py")),
        "edits": [
            {"line": 6, "lines": ["    if (i + 1) % 4 == 0 or i + 1 == len(loader):"], "instead": True}
        ],
    }
    assert read["summary"] == {
        "steps": 30,
        "backwards": 120,
        "seconds": 12.34,
        "watching_seconds": 0.5,
        "optimizers": [{"name": "optimizer", "kind": "AdamW", "parameters": 62, "elements": 1_204_233}],
        "unowned": {"name": "", "kind": "", "parameters": 1, "elements": 10},
        "processes": 1,
        "equal_counts": True,
        "ended_apart": 0,
        "too_short": False,
        "silenced": 0,
        "unused": [],
        "known": 0,
        "gone": 0,
        "notes": [],
        "outcome": "finished",
        "exit_code": None,
        "edited": False,
        "began": True,
    }


def test_evidence_of_any_kind_becomes_strict_json() -> None:
    evidence = {
        "norm": math.inf,
        "ids": frozenset({2, 1}),
        "place": Path("a"),
        "nested": {1: (math.nan, None)},
    }
    text = to_json(Report("", (finding("a.py", evidence=evidence),), SUMMARY))
    assert json.loads(text)["findings"][0]["evidence"] == {
        "norm": "inf",
        "ids": [1, 2],
        "place": "a",
        "nested": {"1": ["nan", None]},
    }
