"""What is handed out for GitHub: workflow, action and hook parse, and their commands do what the page says."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
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


def test_the_action_passes_its_inputs_as_words_and_runs_none_of_them() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    (check,) = [step for step in action["runs"]["steps"] if step["name"] == "Check"]
    assert check["env"] == {
        name.upper(): f"${{{{ inputs.{name} }}}}" for name in ("script", "options", "sarif")
    }
    values = {
        "SCRIPT": "train.py --lr 0.1 * $(exit 3)",
        "OPTIONS": action["inputs"]["options"]["default"],
        "SARIF": "a b.sarif",
    }
    shown = 'gradgate() { printf "%s\\n" "$@"; }; ' + check["run"]
    done = subprocess.run(
        ["bash", "-e", "-c", shown], env=os.environ | values, capture_output=True, text=True, check=True
    )
    words = [*command()[1:-1], *values["SCRIPT"].split()]
    assert sorted(done.stdout.splitlines()) == sorted(
        values["SARIF"] if word == "gradgate.sarif" else word for word in words
    )


@pytest.mark.parametrize("name", ["test", "scheduled", "release"])
def test_a_workflow_calls_targets_and_scripts_that_exist(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8"))
    made = (ROOT / "Makefile").read_text("utf-8")
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = [target for step in steps for target in re.findall(r"\bmake (\S+)", step.get("run", ""))]
    assert targets
    assert [target for target in targets if f"\n{target}:" not in made] == []
    scripts = [step["with"]["script"] for step in steps if step.get("uses") == "./"]
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
