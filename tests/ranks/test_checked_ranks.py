"""Scripts that spawn two ranks, checked as a user does it: the marked line is found, right ones are left alone."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*/*.py"))
MARKER = re.compile(r"# expect: ([a-z-]+)$")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_ranks_are_watched_and_their_findings_merged(script: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "gradgate", "check", "--format", "json", "--output", report, script]
    ran = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode in (0, 1), ran.stderr
    found = json.loads(report.read_text("utf-8"))
    expected = [
        (number, match[1])
        for number, line in enumerate(script.read_text("utf-8").splitlines(), start=1)
        if (match := MARKER.search(line))
    ]
    assert [(one["line"], one["category"]) for one in found["findings"]] == expected
    assert found["summary"]["processes"] == 2
