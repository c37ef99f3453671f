"""Real processes that train together over gloo."""

import functools
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.interpreter import Completed, python

TIMEOUT_SECONDS = 15

# What torchrun does, without an interpreter for each rank. The store starts threads, so it comes last.
LAUNCH = """\
import os, runpy, sys
ranks = int(sys.argv[1])
pipes = [os.pipe() for _ in range(ranks)]
for rank, (read, write) in enumerate(pipes):
    if os.fork() == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=os.read(read, 16).decode())
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE='True')
        sys.argv[:] = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name='__main__')
        sys.exit()
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
for _, write in pipes:
    os.write(write, str(store.port).encode())
sys.exit(max(abs(os.waitstatus_to_exitcode(os.wait()[1])) for _ in pipes))
"""


def torchrun(script: Path, *arguments: str, ranks: int = 2) -> Completed:
    """Run a script on ranks of this machine, as ``torchrun --standalone`` starts them."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if hasattr(os, "fork"):
        return python("-c", LAUNCH, str(ranks), script, *arguments, cwd=Path.cwd(), env=env)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return python(*launcher, script, *arguments, cwd=Path.cwd(), env={**env, "OMP_NUM_THREADS": "1"})


@functools.cache
def preload() -> None:
    """Have multiprocessing fork from a process that has imported all and run nothing: no thread is torn."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.ranks.preloaded"])
    here = Path.cwd()
    os.chdir(Path(__file__).parents[2])  # from where the server finds this package
    try:
        forkserver.ensure_running()
    finally:
        os.chdir(here)


def together(
    function: Callable[..., Any], ranks: int, *args: Any, timeout: float = TIMEOUT_SECONDS
) -> list[Any]:
    """Run ``function(rank, *args)`` on so many ranks; return what each returned, or raised, in their order.

    A rank that ends without either is None. ``timeout``: the seconds that one waits for another.
    """
    preload()
    with tempfile.TemporaryDirectory() as folder:
        context: Any = mp.start_processes(  # type: ignore[no-untyped-call]
            _run,
            (function, ranks, folder, args, timeout),
            nprocs=ranks,
            join=False,
            start_method="forkserver",
        )
        for process in context.processes:
            process.join(4 * TIMEOUT_SECONDS)
            assert process.exitcode is not None, "a rank hangs"
        files = [Path(folder) / str(rank) for rank in range(ranks)]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def _run(
    rank: int,
    function: Callable[..., Any],
    ranks: int,
    folder: str,
    args: tuple[Any, ...],
    seconds: float,
) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout=timeout, rank=rank, world_size=ranks)
    try:
        result = function(rank, *args)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        result = error
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))
