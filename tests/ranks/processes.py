"""Real processes that train together over gloo."""

import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.interpreter import Completed, python

TIMEOUT_SECONDS = 15
ROLL_CALL_SECONDS = 2  # ranks of one machine that are there say so at once

ROOT = Path(__file__).parents[2]
TOGETHER = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.ranks.processes import fork_ranks
fork_ranks(Path(sys.argv[2]))
"""

# What torchrun does, without an interpreter for each rank. The store starts threads, so it comes last.
LAUNCH = """\
import importlib, os, runpy, sys
ranks = int(sys.argv[1])
for name in sys.argv[2].split():
    importlib.import_module(name)
pipes = [os.pipe() for _ in range(ranks)]
for rank, (read, write) in enumerate(pipes):
    if os.fork() == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=os.read(read, 16).decode())
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE='True')
        sys.argv[:] = sys.argv[3:]
        runpy.run_path(sys.argv[0], run_name='__main__')
        sys.exit()
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
for _, write in pipes:
    os.write(write, str(store.port).encode())
sys.exit(max(abs(os.waitstatus_to_exitcode(os.wait()[1])) for _ in pipes))
"""


def torchrun(script: Path, *arguments: str, ranks: int = 2, imported: str = "") -> Completed:
    """Run a script on ranks of this machine, as ``torchrun --standalone`` starts them.

    ``imported``: modules that take seconds to import. They are imported once, and not on each rank.
    """
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if hasattr(os, "fork"):
        return python("-c", LAUNCH, str(ranks), imported, script, *arguments, cwd=Path.cwd(), env=env)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return python(*launcher, script, *arguments, cwd=Path.cwd(), env={**env, "OMP_NUM_THREADS": "1"})


def together(
    function: Callable[..., Any], ranks: int, *args: Any, timeout: float = TIMEOUT_SECONDS
) -> list[Any]:
    """Run ``function(rank, *args)`` on so many ranks; return what each returned, or raised, in their order.

    A rank that ends without either is None. ``function`` is one of a module's own, since ranks import it.
    ``timeout``: the seconds that one waits for another.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job").write_bytes(pickle.dumps((function, ranks, args, timeout)))
        ran = python("-c", TOGETHER, ROOT, folder, cwd=Path.cwd(), timeout=5 * TIMEOUT_SECONDS)
        sys.stderr.write(ran.stderr)
        assert ran.returncode == 0, "a rank hangs"
        files = [Path(folder) / str(rank) for rank in range(ranks)]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def in_a_row(function: Callable[..., Any], ranks: int, rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Run ``function(rank, *row)`` for one row after the other; return for each what :func:`together` returns.

    The ranks are the same for all rows: they take longer to start than most functions of the tests to run.
    """
    return [list(outcomes) for outcomes in zip(*together(_in_a_row, ranks, function, rows), strict=True)]


def in_turn(ranks: int, calls: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Run functions, each with its arguments, one after the other on the same ranks; return what each returned."""
    return in_a_row(_call, ranks, calls)


def _call(rank: int, function: Callable[..., Any], *args: Any) -> Any:
    return function(rank, *args)


def _in_a_row(rank: int, function: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    outcomes: list[Any] = []
    for row in rows:
        try:
            outcomes.append(function(rank, *row))
        except Exception as error:  # noqa: BLE001, PERF203
            traceback.print_exc()
            outcomes.append(error)
    return outcomes


def fork_ranks(folder: Path) -> None:
    """Run the job in a folder, each rank in a fork of this process, in which nothing has run yet."""
    function, ranks, args, seconds = pickle.loads((folder / "job").read_bytes())
    processes = []
    for rank in range(ranks):
        processes.append(os.fork())
        if processes[-1] == 0:
            signal.alarm(4 * TIMEOUT_SECONDS)  # ends a rank that hangs
            _run(rank, function, ranks, folder, args, timedelta(seconds=seconds))
            sys.stderr.flush()
            os._exit(0)  # without the destructors of gloo, which may wait for the other ranks
    ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    sys.exit(-signal.SIGALRM in ends)


def _run(
    rank: int,
    function: Callable[..., Any],
    ranks: int,
    folder: Path,
    args: tuple[Any, ...],
    timeout: timedelta,
) -> None:
    torch.set_num_threads(1)
    # private: how long ranks watch which of them is missing
    from gradgate.ranks import _process_group

    _process_group._ROLL_CALL_SECONDS = ROLL_CALL_SECONDS
    try:
        dist.init_process_group(
            "gloo", f"file://{folder}/store", timeout=timeout, rank=rank, world_size=ranks
        )
        result = function(rank, *args)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        result = error
    (folder / str(rank)).write_bytes(pickle.dumps(result))
