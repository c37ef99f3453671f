"""The workflow that is handed out: it parses, and its command does what the page says."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.interpreter import python

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "github" / "gradgate.yml"
PAGE = ROOT / "docs" / "github.md"


def steps() -> list[dict[str, Any]]:
    return yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["check"]["steps"]


def command() -> list[str]:
    (line,) = [step["run"] for step in steps() if step.get("name") == "Check"]
    return shlex.split(line)


def test_the_workflow_may_upload_and_does_so_also_after_a_failed_check() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read", "security-events": "write"}
    upload = steps()[-1]
    assert upload["uses"].startswith("github/codeql-action/upload-sarif@")
    assert upload["if"].startswith("${{ always()")
    words = command()
    assert upload["with"]["sarif_file"] == words[words.index("--output") + 1]


def test_the_page_shows_the_command_of_the_workflow() -> None:
    assert f"$ {shlex.join(command())}\n" in PAGE.read_text("utf-8")


def test_the_command_writes_findings_with_paths_of_the_repository(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "checked", tmp_path / "examples" / "checked")
    name, *words, script = command()
    assert (name, script) == ("gradgate", "train.py")
    done = python("-m", "gradgate", *words, "examples/checked/digits.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr

    written = json.loads((tmp_path / "gradgate.sarif").read_text("utf-8"))
    assert written["version"] == "2.1.0"
    (run_of,) = written["runs"]
    rules = run_of["tool"]["driver"]["rules"]
    (result,) = run_of["results"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "GG101"
    (place,) = (location["physicalLocation"] for location in result["locations"])
    assert place["artifactLocation"] == {"uri": "examples/checked/digits.py", "uriBaseId": "%SRCROOT%"}
    assert run_of["originalUriBaseIds"]["%SRCROOT%"]["uri"] == tmp_path.as_uri() + "/"
    assert result["partialFingerprints"]


def test_the_hook_runs_a_script_for_a_few_steps_and_fails_on_findings(tmp_path: Path) -> None:
    """As pre-commit runs it: the entry, the user's arguments, and no file names."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("gradgate", "system", False)
    name, *words = shlex.split(hook["entry"])
    assert name == "gradgate"
    shutil.copy(ROOT / "examples" / "checked" / "digits.py", tmp_path / "train.py")
    done = python("-m", "gradgate", *words, "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "GG101" in done.stdout
