"""However a program ends, and whatever it waits for, what was seen of it is told, and its exit code is its own."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.interpreter import python

TRAIN = """\
import multiprocessing, os, queue, subprocess, sys, threading, time
import torch


def train(steps=3):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        weight.square().sum().backward()  # wrong: never cleared
        optimizer.step()


def by_hand(steps=20):
    weight = torch.ones(2, requires_grad=True)
    for step in range(steps):
        (gradient,) = torch.autograd.grad(weight.square().sum(), [weight])
        weight = (weight - 0.1 * gradient).detach().requires_grad_()
        print("step", step)


"""
MISSING = "train.py:10  error  GG201"


def check(folder: Path, main: str, *options: str) -> "subprocess.CompletedProcess[str]":
    lines = "\n".join(f"    {line}" for line in main.splitlines())
    (folder / "train.py").write_text(f"{TRAIN}if __name__ == '__main__':\n{lines}\n", "utf-8")
    return python("-m", "gradgate", "check", *options, "train.py", cwd=folder)


@pytest.mark.parametrize(("status", "code"), [(0, 1), (3, 3)])
def test_a_script_that_leaves_by_os_exit_is_reported(tmp_path: Path, status: int, code: int) -> None:
    done = check(tmp_path, f"train(); os._exit({status})")
    assert MISSING in done.stdout
    assert done.returncode == code


def test_a_script_that_becomes_another_program_is_reported_with_it(tmp_path: Path) -> None:
    again = "os.environ['again'] = '1'; os.execv(sys.executable, [sys.executable, *sys.argv])"
    main = f"if 'again' in os.environ: train()\nelse: {again}"
    done = check(tmp_path, main)
    assert MISSING in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("environment", ["{'PYTHONPATH': 'src'}", "{**os.environ, 'PYTHONPATH': 'src'}"])
def test_a_child_with_an_environment_of_its_own_is_watched(tmp_path: Path, environment: str) -> None:
    child = f"subprocess.run([sys.executable, __file__, 'x'], env={environment}, check=True)"
    main = f"if sys.argv[1:]: train()\nelse: {child}"
    assert MISSING in check(tmp_path, main).stdout


def test_a_check_within_a_check_reports_for_itself(tmp_path: Path) -> None:
    inner = "[sys.executable, '-m', 'gradgate', 'check', __file__, 'x']"
    child = f"print('inner', subprocess.run({inner}, stdout=subprocess.PIPE).stdout.decode())"
    main = f"if sys.argv[1:]: train()\nelse: {child}"
    done = check(tmp_path, main)
    assert MISSING in done.stdout.partition("inner")[2]


def test_a_forked_child_keeps_its_exit_code(tmp_path: Path) -> None:
    main = "if os.fork() == 0: sys.exit(3)\nelse: print('code', os.waitstatus_to_exitcode(os.wait()[1]))"
    assert "code 3\n" in check(tmp_path, main).stdout


@pytest.mark.parametrize(
    "main",
    [
        "q = queue.Queue(); threading.Thread(target=lambda: (train(9), q.put(1))).start(); q.get()",
        "try: train(9)\nexcept BaseException: time.sleep(1000)",
        "while True:\n    try: train(9)\n    except BaseException: pass",
    ],
    ids=["queue", "sleeps", "swallows"],
)
def test_a_run_that_was_told_to_stop_ends(tmp_path: Path, main: str) -> None:
    # private: for how long a run that was told to stop may do nothing
    patience = "import gradgate.checker.running._process as process; process._STALLED_SECONDS = 1"
    done = check(tmp_path, f"{patience}\n{main}", "--max-steps", "4")
    assert MISSING in done.stdout, done.stderr
    assert "; stopped early\n" in done.stdout
    assert "Traceback" not in done.stderr


def test_steps_by_hand_count_where_there_is_no_optimizer(tmp_path: Path) -> None:
    done = check(tmp_path, "by_hand()", "--max-steps", "4")
    assert len(re.findall(r"^step \d", done.stdout, re.MULTILINE)) == 4, done.stdout


def test_a_run_that_is_terminated_is_reported_and_dies_of_it(tmp_path: Path) -> None:
    another = "subprocess.Popen(['sh', '-c', f'sleep 0.1; kill -TERM {os.getpid()}'])"
    done = check(tmp_path, f"train(5)\n{another}\ntime.sleep(60)")
    assert MISSING in done.stdout
    assert done.returncode == -signal.SIGTERM
