"""What does each way to a larger batch on a small device save, and what does it cost?

One update of a small transformer on 64 sequences. Memory is the peak of live tensors during the update, counted
operation by operation, beside parameters and the state of AdamW. Time is relative to the whole batch in one
pass. On a CPU it is the time of the process, so other programs on the machine hardly matter.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from _alternate import alternate, arguments, report, table
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradgate as gg
from gradgate.planning import peak_memory

SEQUENCES, LENGTH, VOCABULARY, WIDTH, LAYERS = 64, 64, 1000, 128, 6
CHUNKS, RANKS = 8, 2


class Model(nn.Module):
    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x.flatten(0, 1)


def in_chunks(head: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    """Return the summed loss without all logits at once: what fused losses do in one kernel, in plain PyTorch."""

    def of_chunk(x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), targets, reduction="sum")

    pairs = zip(x.chunk(CHUNKS), targets.chunk(CHUNKS), strict=True)
    return torch.stack([checkpoint(of_chunk, *pair, use_reentrant=False) for pair in pairs]).sum()


def update_of(
    device: str,
    *,
    size: int,
    sequences: int = SEQUENCES,
    recompute: bool = False,
    half: bool = False,
    chunks: bool = False,
) -> Callable[[], object]:
    """Return a function that makes one update of this process's sequences, in micro-batches of a size."""
    torch.manual_seed(0)
    model = Model(recompute=recompute).to(device)
    accumulator = gg.Accumulator(torch.optim.AdamW(model.parameters(), foreach=False), model=model)
    tokens = torch.randint(VOCABULARY, (sequences, LENGTH), device=device)

    def loss_fn(tokens: Tensor) -> tuple[Tensor, int]:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            x = model(tokens)
            logits = x if chunks else model.head(x)
        if chunks:
            return in_chunks(model.head, logits, tokens.flatten()) / tokens.numel(), tokens.numel()
        return F.cross_entropy(logits.float(), tokens.flatten()), tokens.numel()

    return lambda: accumulator.step_window(loss_fn, tokens.split(size))


def peak_mebibytes(way: Callable[[], object]) -> float:
    with peak_memory() as memory:
        way()
    return memory.peak_bytes / 2**20


def on_rank(rank: int, folder: str, device: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    way = update_of(device, size=SEQUENCES // RANKS, sequences=SEQUENCES // RANKS)
    way()
    Path(folder, str(rank)).write_text(str(peak_mebibytes(way)))
    dist.destroy_process_group()


def peak_on_ranks(device: str) -> float:
    """Return the peak of one of several ranks, each with its part of the sequences."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder, device), RANKS)
        return max(float(Path(folder, str(rank)).read_text()) for rank in range(RANKS))


def main() -> None:
    question = "Ways to a larger batch on a small device"
    given = arguments(question)
    ways = {
        "whole batch": update_of(given.device, size=64),
        "accumulation, 4 micro-batches of 16": update_of(given.device, size=16),
        "accumulation, 16 micro-batches of 4": update_of(given.device, size=4),
        "activation checkpointing": update_of(given.device, size=64, recompute=True),
        "bfloat16 autocast": update_of(given.device, size=64, half=True),
        "head and loss in 8 chunks": update_of(given.device, size=64, chunks=True),
        "checkpointing, autocast, 4 micro-batches": update_of(
            given.device, size=16, recompute=True, half=True
        ),
    }
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    times = alternate(ways, rounds=given.rounds or 10, warm_up=2, device=given.device, clock=clock)
    peaks = {name: peak_mebibytes(way) for name, way in ways.items()}
    peaks[f"one of {RANKS} ranks, {SEQUENCES // RANKS} sequences each"] = peak_on_ranks(given.device)
    rows = [f"| {name} | {peak:.0f} |" for name, peak in peaks.items()]
    memory = "\n".join(["### Peak memory", "", "| variant | MiB |", "|---|---|", *rows]) + "\n"
    report(question, [memory, table("Time", times)], given.write)


if __name__ == "__main__":
    main()
