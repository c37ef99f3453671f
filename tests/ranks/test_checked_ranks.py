"""Scripts of two ranks: they compute the same watched or not, and what all ranks show is one list of findings.

Those of ``wrong`` and ``right`` get the environment of torchrun in processes that several scripts share, with a new
process group for each run: starting an interpreter takes longer than the training. Those of ``spawning`` start
their ranks themselves, and are checked with ``gradgate check``.
"""

import contextlib
import hashlib
import io
import json
import os
import runpy
import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from corpus.scripts import MARK
from gradgate.checker.recording import Watcher
from gradgate.checker.reports import report_on
from gradgate.events import Log
from tests import pages
from tests.interpreter import python
from tests.ranks.processes import TIMEOUT_SECONDS, together
from tests.test_scripts import at_a_mark

SCRIPTS = Path(__file__).parent / "scripts"
WRONG = sorted(SCRIPTS.glob("wrong/*.py"))
RIGHT = sorted(SCRIPTS.glob("right/*.py"))
SHOWN = pages.shown_scripts("tests/ranks/scripts/")
SPAWNING = sorted(SCRIPTS.glob("spawning/*.py"))

# What the rules do not find, and why. A rule that learns to find one makes its test fail: take it out then.
MISSED = {
    "wrong/unused_head": "its output is displayed, which may be meant",
    "wrong/buffer_never_divided": "what is done with a flat buffer is not recorded",
    "wrong/forward_outside": "the line under no_sync and the other line have no window in common",
    "wrong/global_token_mean": "the items of other ranks are known to none",
    "wrong/global_batch_mean": "a sum over n items by 2n is half a mean, too, and that is often meant",
}

GROUP = 8  # scripts that two processes run, one after the other

# A DDP that is freed behind destroy_process_group() may wait for ever, watched or not: torch 2.13 with gloo.
_kept: list[torch.nn.Module] = []


@dataclass
class Outcome:
    printed: str
    computed: str
    log: Log


def on_a_rank(rank: int, scripts: list[Path], ports: list[int]) -> list[list[Outcome] | Exception]:
    """Run scripts as torchrun does, each once plain and once watched; return what they did, or raised."""
    dist.barrier()  # who leaves while the other one is still connecting tears its connection
    dist.destroy_process_group()
    distributed_c10d.default_pg_timeout = timedelta(seconds=TIMEOUT_SECONDS)  # who waits alone gives up
    register_module_module_registration_hook(lambda module, *_: _kept.append(module))
    address = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update(address, **{name: str(number) for name, number in place.items()})
    outcomes: list[list[Outcome] | Exception] = []
    for script in scripts:
        sys.argv[:] = [str(script)]
        try:
            outcomes.append([run(script, ports.pop(), watch=watch) for watch in (False, True)])
        except Exception as error:  # noqa: BLE001
            outcomes.append(error)
    return outcomes


def run(script: Path, port: int, *, watch: bool) -> Outcome:
    os.environ["MASTER_PORT"] = str(port)
    digest = hashlib.sha256()

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            tensor = getattr(parameter, "_local_tensor", parameter).detach().contiguous()
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())

    hook = register_optimizer_step_post_hook(look)
    watcher, printed = Watcher(str(script), strict=True), io.StringIO()
    if watch:
        watcher.start()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a wrong script may well be warned of by torch
            runpy.run_path(str(script), run_name="__main__")
    finally:
        watcher.stop()
        hook.remove()
    digest.update(torch.get_rng_state().numpy().tobytes())
    return Outcome(printed.getvalue(), digest.hexdigest(), watcher.log())


def name(path: Path) -> str:
    return path.relative_to(SCRIPTS).with_suffix("").as_posix()


def marked(script: Path) -> list[tuple[int, str]]:
    """Return the lines that are marked, with the category that is expected there."""
    lines = enumerate(script.read_text("utf-8").splitlines(), start=1)
    return [(n, match[1]) for n, line in lines if (match := MARK.search(line))]


def in_groups(scripts: list[Path]) -> pytest.MarkDecorator:
    """Give each script, and the number of its group to ``group``: the scripts of a group are tested in a row."""
    rows = [pytest.param(n // GROUP, script, id=name(script)) for n, script in enumerate(scripts)]
    return pytest.mark.parametrize(("group", "script"), rows, indirect=["group"], scope="module")


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest) -> dict[Path, list[Any]]:
    """What each rank did with each script of a group: two processes take longer to start than scripts to train."""
    scripts = [*WRONG, *RIGHT][request.param * GROUP :][:GROUP]
    stores = [
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2 * len(scripts))
    ]
    ranks = together(on_a_rank, 2, scripts, [store.port for store in stores])
    return dict(zip(scripts, zip(*ranks, strict=True), strict=True))


@pytest.mark.slow
@in_groups([*WRONG, *RIGHT])
def test_ranks_compute_the_same_watched_or_not_and_their_findings_are_merged(
    group: dict[Path, list[Any]], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = group[script]
    for raised in ranks:
        if isinstance(raised, Exception):
            raise raised
    for plain, watched in ranks:
        assert watched.printed == plain.printed
        assert watched.computed == plain.computed
    report = report_on([watched.log for _, watched in ranks])
    assert report.summary.processes == 2
    wrong = script in WRONG and name(script) not in MISSED
    assert [
        one for one in report.faults if not (wrong and at_a_mark(one, script))
    ] == []  # one cause, one finding
    assert any(at_a_mark(one, script) for one in report.findings) == wrong
    if script in SHOWN:
        monkeypatch.chdir(tmp_path)
        assert SHOWN[script] in pages.as_train_py(report, script, tmp_path)


def test_the_page_of_the_rule_shows_one_of_these_scripts() -> None:
    assert len(SHOWN) == 1
    assert set(SHOWN) <= set(WRONG)


def checked(folder: Path, *command: object) -> tuple[int, dict[str, Any]]:
    """Check a script, or a command that starts its ranks; return the exit code and the report."""
    report = folder / "report.json"
    check = ["-m", "gradgate", "check", "--format", "json", "--output", str(report)]
    ran = python(*check, *map(str, command), cwd=folder, timeout=60)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.returncode, json.loads(report.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SPAWNING, ids=name)
def test_a_script_that_spawns_its_ranks_is_checked(script: Path, tmp_path: Path) -> None:
    _, found = checked(tmp_path, script)
    assert [(one["line"], one["category"]) for one in found["findings"]] == marked(script)
    assert found["summary"]["processes"] == 2
    assert (found["summary"]["ended_apart"] > 0) == bool(marked(script))


@pytest.mark.slow
def test_torchrun_is_checked_as_it_is_written(tmp_path: Path) -> None:
    # If gloo still releases the last all_reduce when the interpreter ends, the rank aborts, watched or not, in
    # every third run on busy cores (torch 2.13, see pytorch/pytorch#179291). So this copy ends with a pause.
    script = tmp_path / "reduced_each_micro_batch.py"
    source = (SCRIPTS / "wrong" / script.name).read_text()
    script.write_text(source + "\nimport time\n\ntime.sleep(0.5)\n")
    code, found = checked(tmp_path, "torchrun", "--standalone", "--nproc-per-node", "2", script)
    assert code == 1
    assert [(one["line"], one["category"]) for one in found["findings"]] == marked(script)
    assert found["findings"][0]["evidence"]["ranks"] == [0, 1]
    assert (found["summary"]["exit_code"], found["summary"]["processes"]) == (0, 2)
