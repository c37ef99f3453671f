"""Real processes that train together over gloo."""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_SECONDS = 15
PRELOADED = [
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "gradgate.accumulation",
    "gradgate.planning",
    "hypothesis",
    "pytest",
    "sklearn.datasets",
]


def together(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """Run ``function(rank, *args)`` on so many ranks; return what each returned, or raised, in their order.

    A rank that ends without either is None.
    """
    # Forked from a process that has imported all and run nothing: quick, and no thread is torn.
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        context: Any = mp.start_processes(  # type: ignore[no-untyped-call]
            _run, (function, ranks, folder, args), nprocs=ranks, join=False, start_method="forkserver"
        )
        for process in context.processes:
            process.join(4 * TIMEOUT_SECONDS)
            assert process.exitcode is not None, "a rank hangs"
        files = [Path(folder) / str(rank) for rank in range(ranks)]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def _run(rank: int, function: Callable[..., Any], ranks: int, folder: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout=timeout, rank=rank, world_size=ranks)
    try:
        result = function(rank, *args)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        result = error
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))
