"""How a watched script ended is passed on as the exit code, and named in words and in JSON."""

import json
import signal
import sys
from pathlib import Path

import pytest

from gradgate.checker.reports import Summary
from tests.interpreter import python
from tests.ranks.processes import LAUNCH

SCRIPT = """\
import os, signal, sys, threading, time
import torch

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(8):
    {clear}
    weight.square().sum().backward()
    optimizer.step()
{end}
"""
RIGHT, WRONG = "optimizer.zero_grad()", "pass"


def check(folder: Path, end: str, clear: str = WRONG) -> tuple[int, str, int]:
    """Return gradgate's exit code, how the script ended, and the script's exit code as JSON has it."""
    (folder / "train.py").write_text(SCRIPT.format(clear=clear, end=end), "utf-8")
    done = python("-m", "gradgate", "check", "--output", "report.json", "train.py", cwd=folder)
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert ("GG201" in [finding["code"] for finding in report["findings"]]) == (clear == WRONG)
    assert report["summary"]["steps"] == 8
    return done.returncode, report["summary"]["outcome"], report["summary"]["exit_code"]


@pytest.mark.parametrize(
    ("end", "code", "own", "outcome"),
    [
        ("", 1, 0, "finished"),
        ("sys.exit()", 1, 0, "finished"),
        ("os._exit(0)", 1, 0, "finished"),
        ("os._exit(3)", 3, 3, "failed"),
        ("sys.exit(-1)", 255, 255, "failed"),
        ("sys.exit(256)", 1, 0, "finished"),  # the system keeps the lowest byte
        ("sys.exit('no data')", 1, 1, "failed"),
        ("raise KeyboardInterrupt", 130, 130, "interrupted"),
        ("import atexit; atexit.register(os._exit, 4)", 4, 4, "failed"),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 7'])", 7, 7, "failed"),
    ],
)
def test_the_scripts_exit_code_is_passed_on_and_beats_the_findings(
    tmp_path: Path, end: str, code: int, own: int, outcome: str
) -> None:
    assert check(tmp_path, end) == (code, outcome, own)


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3)])
def test_a_script_without_findings_keeps_its_exit_code(tmp_path: Path, end: str, code: int) -> None:
    assert check(tmp_path, end, RIGHT) == (code, "failed" if code else "finished", code)


def test_a_terminated_script_is_named_by_its_signal_and_dies_of_it(tmp_path: Path) -> None:
    end = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    assert check(tmp_path, end) == (-signal.SIGTERM, "interrupted", 128 + signal.SIGTERM)


RANKS = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(8):
    weight.square().sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
sys.exit(5 if os.environ["RANK"] == sys.argv[1] else 0)
"""


TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]


# torchrun starts an interpreter for each rank, and exits with 1. The other launcher forks, and exits with the
# rank's code.
@pytest.mark.slow
@pytest.mark.parametrize(("failing", "code"), [("0", 5), ("1", 1)])
def test_a_failing_rank_fails_the_launcher_whose_code_is_passed_on(
    tmp_path: Path, failing: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(RANKS, "utf-8")
    (tmp_path / "launch.py").write_text(LAUNCH, "utf-8")
    launcher = TORCHRUN if failing == "1" else ["launch.py", "2", ""]
    check = ["-m", "gradgate", "check", "--output", "report.json"]
    done = python(*check, *launcher, "train.py", failing, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [finding["code"] for finding in report["findings"]] == ["GG201"]
    assert (report["summary"]["exit_code"], report["summary"]["processes"]) == (code, 2)


@pytest.mark.parametrize(
    ("outcome", "code", "ending"),
    [
        ("finished", 0, ""),
        ("stopped", 0, ""),
        ("failed", None, "failed"),  # a loop in this process
        ("failed", 3, "failed with exit code 3"),
        ("interrupted", 130, "was interrupted"),
        ("interrupted", None, "was interrupted"),
        ("interrupted", 143, "was ended by SIGTERM"),
    ],
)
def test_an_ending_is_put_into_words(outcome: str, code: int | None, ending: str) -> None:
    assert Summary(3, 3, 1.0, 0.1, outcome=outcome, exit_code=code).ending == ending
