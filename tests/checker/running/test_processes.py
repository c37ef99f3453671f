"""Children that train are watched, whoever starts them; those that serve are left alone."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interpreter import python

TRAIN = """\
import multiprocessing, os, subprocess, sys
import torch
from torch import nn


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        import gradgate.checker.running._process as process  # would say that it is watched
        watched = process.state.watcher is not None and os.getpid() != MAIN
        return torch.full((4,), float(watched)), i % 2


MAIN = os.getpid()


def train(rank=0, steps=3):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4 * steps):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))) / 4
        loss.backward()
        if i % 4 == 0:  # wrong
            optimizer.step()
            optimizer.zero_grad()


def processes(method):
    context = multiprocessing.get_context(method)
    started = [context.Process(target=train, args=(rank, 3 + rank)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    print(method, [process.exitcode for process in started])


def workers(method, number):
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=number, multiprocessing_context=method)
    print(method, sum(x.sum().item() for x, _ in loader))


"""
WRONG = TRAIN.splitlines().index("        if i % 4 == 0:  # wrong") + 1


def check(folder: Path, main: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (folder / "train.py").write_text(f"{TRAIN}if __name__ == '__main__':\n    {main}\n", "utf-8")
    command = ["-m", "gradgate", "check", "--format", "json", "--output", "report.json", *options]
    done = python(*command, "train.py", cwd=folder)
    assert (folder / "report.json").is_file(), done.stderr
    return done, json.loads((folder / "report.json").read_text("utf-8"))


def places(report: dict[str, Any]) -> list[tuple[str, int]]:
    return [(finding["code"], finding["line"]) for finding in report["findings"]]


def test_processes_of_multiprocessing_are_watched_and_their_findings_merged(tmp_path: Path) -> None:
    done, report = check(tmp_path, "processes('fork'); processes('forkserver')")
    assert done.stdout == "fork [0, 0]\nforkserver [0, 0]\n"
    assert places(report) == [("GG101", WRONG)]
    assert report["findings"][0]["evidence"]["processes"] == 4
    assert (report["summary"]["processes"], report["summary"]["steps"]) == (4, 4)
    assert done.returncode == 1


def test_loaders_workers_are_silent_and_unwatched(tmp_path: Path) -> None:
    done, report = check(tmp_path, "workers('fork', 2); workers('spawn', 1); train()")
    assert done.stdout == "fork 0.0\nspawn 0.0\n"
    assert done.stderr.count("\n") == 1  # our own line
    assert places(report) == [("GG101", WRONG)]
    assert report["summary"]["processes"] == 1


def test_interpreters_and_bare_forks_are_watched_too(tmp_path: Path) -> None:
    main = (
        "if sys.argv[1:]: train(); sys.exit()\n"
        "    print(subprocess.run([sys.executable, __file__, '1']).returncode, flush=True)\n"
        "    if os.fork() == 0: train()\n"
        "    else: os.wait()"
    )
    done, report = check(tmp_path, main)
    assert done.stdout == "0\n"
    assert places(report) == [("GG101", WRONG)]
    assert report["summary"]["processes"] == 2


def test_children_that_are_stopped_after_some_steps_end_in_peace(tmp_path: Path) -> None:
    main = "import torch.multiprocessing as mp; mp.spawn(train); processes('fork')"
    done, report = check(tmp_path, main, "--max-steps", "2")
    assert done.stdout == "fork [0, 0]\n"
    assert "Traceback" not in done.stderr
    assert (report["summary"]["processes"], report["summary"]["steps"]) == (3, 2)


@pytest.mark.slow
def test_ranks_of_torchrun_give_one_report(tmp_path: Path) -> None:
    setup = "import torch.distributed as dist; dist.init_process_group('gloo'); train()"
    (tmp_path / "train.py").write_text(f"{TRAIN}if __name__ == '__main__':\n    {setup}\n", "utf-8")
    check = ["-m", "gradgate", "check", "--output", "report.json"]
    launch = ["torchrun", "--standalone", "--nproc-per-node", "2"]
    done = python(*check, *launch, "train.py", cwd=tmp_path)
    assert (tmp_path / "report.json").is_file(), done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert places(report) == [("GG101", WRONG)]
    assert [finding["evidence"]["ranks"] for finding in report["findings"]] == [[0, 1]]
    assert report["summary"]["processes"] == 2


def test_a_rank_that_torchrun_started_is_not_checked_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n", "utf-8")
    launched = os.environ | {"TORCHELASTIC_RUN_ID": "none"}
    done = python("-m", "gradgate", "check", "train.py", cwd=tmp_path, env=launched)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Write: gradgate check torchrun" in done.stderr
