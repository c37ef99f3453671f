"""The command: what it finds, what it refuses, its exit codes. How it runs a script: tests/running."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradgate.checker.rules import RETIRED, rules
from gradgate.cli import main
from tests.interpreter import python

WRONG = """\
import sys
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(12):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))) / 4
    loss.backward()
    if i % 4 == 0:{comment}
        optimizer.step()
        optimizer.zero_grad()
print("trained")
{end}
"""
LINE = 10


def gradgate(
    folder: Path, *arguments: str, comment: str = "", end: str = "", script: str | None = None
) -> subprocess.CompletedProcess[str]:
    text = WRONG.format(comment=comment, end=end) if script is None else script
    (folder / "train.py").write_text(text, "utf-8")
    return python("-m", "gradgate", *arguments, cwd=folder)


def test_the_line_is_found_and_shown_below_what_the_script_prints(tmp_path: Path) -> None:
    done = gradgate(tmp_path, "check", "train.py", "--epochs", "1")
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "trained"
    assert lines[3] == f"train.py:{LINE}  error  GG101 accumulation-window, 2 times"
    assert f"  ❱   {LINE} │ if i % 4 == 0:" in lines
    end = re.sub(r"\d+\.\d s, \d+%", "0.0 s, 0%", "\n".join(lines[-4:]))
    assert end == (
        "Found 1 error.\n"
        "watched  3 steps, 12 backward calls (4 for each step)\n"
        "         optimizer (SGD): 2 tensors, 10 parameters\n"
        "took     0.0 s, 0% of it spent on watching"
    )


def test_a_script_that_fails_keeps_its_findings(tmp_path: Path) -> None:
    options = ("--format", "json", "--output", "report.json")
    done = gradgate(tmp_path, "check", *options, "train.py", end="1 / 0")
    assert done.returncode == 1
    assert done.stdout == "trained\n"
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.count("  File ") == 1
    assert re.search(
        r"\ngradgate: 1 finding after 3 steps; the script failed with exit code 1; the report is in .*.json\n",
        done.stderr,
    )
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [(each["code"], each["line"]) for each in report["findings"]] == [("GG101", LINE)]
    assert (report["summary"]["outcome"], report["summary"]["began"]) == ("failed", True)


def test_options_after_the_script_are_its_own_and_this_is_said(tmp_path: Path) -> None:
    reads = "print(sys.argv[1:])"
    done = gradgate(tmp_path, "check", "train.py", "--output", "report.json", "--lr", "1", end=reads)
    assert "['--output', 'report.json', '--lr', '1']" in done.stdout
    assert done.stderr == (
        "gradgate: --output after train.py is passed to the script. Write gradgate's options before it.\n"
    )
    assert not (tmp_path / "report.json").exists()
    done = gradgate(tmp_path, "check", "--", "train.py", "--output", "report.json")  # said by the user
    assert done.stderr == ""


def test_the_help_shows_its_examples_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    text = capsys.readouterr().out
    assert "\n  gradgate check --output report.html train.py         a page with figures\n" in text
    assert "\\b" not in text
    assert "<bool>" not in text
    assert "list[str]" not in text


def test_the_commands_are_listed_with_whole_sentences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "..." not in text.partition("Commands:")[2]
    assert "\n  check    Run a training script and report its gradient mistakes by line.\n" in text


def test_a_module_that_is_missing_is_looked_for_in_the_python_that_is_named(tmp_path: Path) -> None:
    done = gradgate(tmp_path, "check", "train.py", script="import not_installed_here\n")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'not_installed_here'\n" in done.stderr
    note = f"note The script runs in {sys.executable}, which has no module 'not_installed_here'."
    assert " ".join(done.stdout.split()).endswith(note)


def test_a_script_may_change_the_folder_and_hide_our_modules(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise RuntimeError('not this one')", "utf-8")
    (tmp_path / "elsewhere").mkdir()
    done = gradgate(
        tmp_path, "check", "--output=report.txt", "train.py", end="import os\nos.chdir('elsewhere')"
    )
    assert done.returncode == 1, done.stderr
    assert f"\ntrain.py:{LINE}  error" in (tmp_path / "report.txt").read_text("utf-8")


@pytest.mark.parametrize(
    "end",
    [
        "sys.stdout.close()",
        "sys.stdout = None",
        "sys.stdout = open('out.txt', 'w')",
        "import io; sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='ascii')",
        "import os; os.close(1)",
    ],
)
def test_a_report_is_seen_whatever_the_script_makes_of_its_output(tmp_path: Path, end: str) -> None:
    done = gradgate(tmp_path, "check", "train.py", end=end)
    assert done.returncode == (2 if "os.close" in end else 1)
    assert "Found 1 error." in done.stdout + done.stderr or "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
def test_an_output_that_knows_ascii_only_gets_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = gradgate(tmp_path, "check", "--format", form, "train.py", comment="  # größer")
    assert done.returncode == 1
    assert "GG101" in done.stdout


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("ignore", True),
        ("ignore [GG101]", True),
        ("ignore[GG101", True),
        ("ignore: as the paper does", True),
        ("ignore[GG103]", False),
        ("ignore [GG999]", False),
        ("ignored later", False),
    ],
)
def test_a_comment_silences_what_it_names(tmp_path: Path, comment: str, silent: bool) -> None:
    done = gradgate(tmp_path, "check", "train.py", comment=f"  # gradgate: {comment}")
    assert ("error  GG101" not in done.stdout) == silent
    assert ("`# gradgate: ignore[GG999]` has no effect" in done.stdout) == ("GG999" in comment)


def test_a_run_without_steps_is_not_called_right(tmp_path: Path) -> None:
    script = "import torch\nw = torch.ones(2, requires_grad=True)\ntorch.autograd.grad(w.sum(), [w])\n"
    done = gradgate(tmp_path, "check", "train.py", script=script)
    assert done.returncode == 0
    assert done.stdout.startswith("No mistakes found, but not everything could be checked.\n")
    assert "1 backward call" in done.stdout
    assert "No step of a torch optimizer was seen. " in done.stdout


PRINTS = """
import atexit, os, subprocess
os.write(1, b"written\\n")
subprocess.run(["echo", "by a child"])
subprocess.Popen(["sh", "-c", "sleep 0.2; echo late"])
if os.fork() == 0:
    print("forked")
    sys.exit()
atexit.register(print, "at exit")
"""


@pytest.mark.parametrize("form", ["--format=json", "--format=sarif", "--format=html", "--diff"])
def test_standard_output_holds_only_the_report_if_programs_read_it(tmp_path: Path, form: str) -> None:
    done = gradgate(tmp_path, "check", form, "train.py", end=PRINTS)
    saved = gradgate(tmp_path, "check", form, "--output", "report.any", "train.py", end=PRINTS)
    printed = {"trained", "written", "by a child", "late", "forked", "at exit"}
    assert done.returncode == saved.returncode == 1
    assert printed <= set(done.stderr.splitlines())
    assert set(saved.stdout.splitlines()) == printed
    assert done.stdout[0] == {"--format=html": "<", "--diff": "-"}.get(form, "{")
    assert done.stdout.splitlines()[-1] == (tmp_path / "report.any").read_text("utf-8").splitlines()[-1]
    if "json" in form or "sarif" in form:
        assert "GG101" in json.dumps(json.loads(done.stdout))


def test_a_comment_silences_its_line_and_sarif_is_written_to_standard_output(tmp_path: Path) -> None:
    done = gradgate(tmp_path, "check", "--format=sarif", "-m", "train", comment="  # gradgate: ignore[GG101]")
    assert done.returncode == 0
    sarif = json.loads(done.stdout)
    assert sarif["runs"][0]["results"] == []
    assert done.stderr == "trained\ngradgate: 0 findings after 3 steps\n"


def test_a_baseline_accepts_what_is_there_and_reports_what_is_new(tmp_path: Path) -> None:
    written = gradgate(tmp_path, "check", "--write-baseline", "known.json", "train.py")
    assert written.returncode == 0
    assert "No new mistakes found, but this run is too short: some rules need 8 steps.\n" in written.stdout
    assert [each["code"] for each in json.loads((tmp_path / "known.json").read_text())["findings"]] == [
        "GG101"
    ]
    longer = "# a line above\n" + WRONG.format(comment="", end="")
    known = gradgate(tmp_path, "check", "--baseline", "known.json", "train.py", script=longer)
    assert known.returncode == 0
    assert "known    1 finding in the baseline\n" in known.stdout
    (tmp_path / "pyproject.toml").write_text('[tool.gradgate]\nbaseline = "known.json"', "utf-8")
    new = longer.replace("optimizer.zero_grad()", "pass")
    done = gradgate(tmp_path, "check", "train.py", script=new)
    assert done.returncode == 1
    assert "GG201" in done.stdout
    fixed = gradgate(tmp_path, "check", "train.py", script=longer.replace("i % 4 == 0", "i % 4 == 3"))
    assert fixed.returncode == 0
    assert "known    0 findings in the baseline; 1 other baseline finding no longer found\n" in fixed.stdout


def test_a_baseline_that_is_missing_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    done = gradgate(tmp_path, "check", "--baseline", "known.json", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradgate check: there is no baseline 'known.json'. Write one: ")


ENDLESS = """\
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
kept = open("kept.txt", "w")
while True:
    try:
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        kept.write("step\\n")
        print("step", flush=True)
    except {caught}:
        pass
"""


def test_an_endless_loop_is_stopped_even_where_it_swallows_everything(tmp_path: Path) -> None:
    script = ENDLESS.format(caught="BaseException")
    done = gradgate(tmp_path, "check", "--max-steps", "3", "train.py", script=script)
    assert done.returncode == 0
    assert done.stdout.startswith(
        "step\nstep\nNo mistakes found, but this run is too short: some rules need 8 steps.\n"
        "watched  3 steps, 3 backward calls; stopped early\n"
    )
    assert (tmp_path / "kept.txt").read_text("utf-8") == "step\nstep\n"


def test_an_endless_loop_is_stopped_after_so_many_seconds(tmp_path: Path) -> None:
    done = gradgate(
        tmp_path, "check", "--max-seconds", "0.5", "train.py", script=ENDLESS.format(caught="KeyError")
    )
    assert done.returncode == 0
    assert re.search(r"^watched  \d[\d,]* steps?, .*; stopped early$", done.stdout, re.MULTILINE)


def test_an_interrupt_ends_the_run_with_a_report(tmp_path: Path) -> None:
    interrupt = (
        "import os, subprocess\nsubprocess.Popen(['sh', '-c', f'sleep 0.3; kill -INT {os.getpid()}'])\n"
    )
    done = gradgate(
        tmp_path, "check", "train.py", script=interrupt + ENDLESS.format(caught="ZeroDivisionError")
    )
    assert done.returncode == 130
    assert done.stderr == ""
    verdict = r"train.py was interrupted after [\d,]+ steps?\. No mistakes found up to that point\.$"
    assert re.search(verdict, done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["check", "nowhere.py"],
            "gradgate check: there is no script 'nowhere.py'.\n",
        ),
        (
            ["check", __file__.removesuffix(".py")],
            f"gradgate check: there is no script {__file__.removesuffix('.py')!r}. Did you mean {__file__!r}?\n",
        ),
        (
            ["check", "--select", "GG1", "GG2", __file__],
            "gradgate check: there is no script 'GG2'. Write options before the script, each with one value.\n",
        ),
        (
            ["check"],
            "gradgate check: no script given. Write: gradgate check train.py, or -m module.\n",
        ),
        (
            ["check", "--output", "no/folder.json", __file__],
            "gradgate check: 'no/folder.json' is in a folder that does not exist. Create it first.\n",
        ),
        (
            ["check", "--output", "/", __file__],
            "gradgate check: '/' is a folder. Name a file: '/report.txt'.\n",
        ),
        (
            ["check", "--output", "report.pdf", __file__],
            "gradgate check --output: the extension of 'report.pdf' is unknown. Use one of .html, .json, "
            ".sarif, .txt.\n",
        ),
        (
            ["check", "-"],
            "gradgate check: '-' has no lines for a report. Save the script to a file.\n",
        ),
        (
            ["check", "--select", "none", __file__],
            "gradgate check: select: no rule has the code or category 'none'. `gradgate rules` lists all rules.\n",
        ),
        (
            ["explain", "GG999"],
            "gradgate explain: no rule has the code or category 'GG999'. `gradgate rules` lists all rules.\n",
        ),
    ],
)
def test_what_cannot_be_done_is_said_with_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err == message


def test_a_bug_in_gradgate_itself_is_not_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # private: a bug, made here
    monkeypatch.delattr("gradgate.cli._rules.list_rules")
    with pytest.raises(SystemExit) as end:
        main(["rules"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("gradgate: a bug in gradgate itself, not in the script:\nTrace")


def test_an_option_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check", "--maxsteps", "3", "train.py"])
    assert end.value.code == 2
    assert "No such option: --maxsteps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.gradgate]\nselct = []", "[tool.gradgate] has no option 'selct'. Did you mean 'select'?"),
        (
            "[tool.gradgate]\nlevel = 1",
            "[tool.gradgate] has no option 'level'. The options are baseline, select, ignore, format, max-steps, "
            "max-seconds.",
        ),
        (
            "[tool.gradgate]\nignore = 'GG1'",
            "[tool.gradgate]: ignore is 'GG1'. Write a list of strings: ignore = [\"GG103\"].",
        ),
        (
            "[tool.gradgate]\nmax-steps = true",
            "[tool.gradgate]: max-steps is True. Write an integer of 1 or more.",
        ),
        (
            "[tool.gradgate]\nmax-seconds = 0",
            "[tool.gradgate]: max-seconds is 0. Write a number above 0.",
        ),
        (
            "[tool.gradgate]\nformat = 'pdf'",
            "[tool.gradgate]: format is 'pdf'. Write one of text, json, sarif, html.",
        ),
        (
            "[tool]\ngradgate = 1",
            "tool.gradgate is not a table. Write [tool.gradgate] above its options.",
        ),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(text, "utf-8")
    (tmp_path / "train.py").touch()
    with pytest.raises(SystemExit) as end:
        main(["check", str(tmp_path / "train.py")])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"gradgate: {path}: {message}\n"


def test_the_nearest_pyproject_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)

    def found() -> tuple[list[str], int]:
        done = gradgate(inner, "check", "--format", "json", "--output", "report.json", "train.py")
        report = json.loads((inner / "report.json").read_text("utf-8"))
        assert done.returncode == bool(report["findings"])
        return [each["code"] for each in report["findings"]], report["summary"]["steps"]

    (tmp_path / "pyproject.toml").write_text('[tool.gradgate]\nignore = ["GG1"]\nmax-steps = 2', "utf-8")
    assert found() == ([], 2)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'a'", "utf-8")
    assert found() == (["GG101"], 3)


def test_the_configuration_counts_where_the_command_line_says_nothing(tmp_path: Path) -> None:
    settings = '[tool.gradgate]\nignore = ["accumulation-window"]\nformat = "json"'
    (tmp_path / "pyproject.toml").write_text(settings, "utf-8")
    done = gradgate(tmp_path, "check", "--ignore", "GG2,GG103", "train.py")
    report = json.loads(done.stdout.removeprefix("trained\n"))
    assert [each["code"] for each in report["findings"]] == ["GG101"]


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["rules"])
    assert end.value.code == 0
    listed = capsys.readouterr().out
    codes = {*(rule.code for rule in rules()), *RETIRED}
    assert sorted(re.findall(r"^GG\d+", listed, re.MULTILINE)) == sorted(codes)


@pytest.mark.parametrize("name", ["GG101", "gg101", "accumulation-window"])
def test_a_rule_is_explained_by_code_or_category(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["explain", name])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for part in ("GG101: accumulation-window", "Why is this bad?", "Use instead", "Known limits", "Sources"):
        assert part in text


def test_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['rich'] = None; from gradgate.cli import main; main(['rules'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "gradgate: the command needs rich, which `pip install gradgate` alone does not install. Run\n\n"
        "    pip install 'gradgate[cli]'\n\n"
        "In Python, `with gradgate.watch() as report:` works without this command.\n"
    )


def test_the_command_line_imports_neither_torch_nor_what_draws() -> None:
    program = (
        "import sys; from gradgate.cli._app import parse; parse(['check', 'x.py']); import gradgate.cli._check\n"
        "print(sorted({'torch', 'numpy', 'pygments', 'tomllib', 'rich.markdown'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
