"""What does each way to a larger batch on a small device save, and what does it cost?

One update of a small transformer on 64 sequences. Memory is the peak of live tensors during the update, counted
operation by operation, beside parameters and the state of AdamW. Time is relative to the whole batch in one pass.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from _alternate import alternate, arguments, report, table
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradgate as gg
from gradgate.planning import peak_memory

SEQUENCES, LENGTH, VOCABULARY, WIDTH, LAYERS = 64, 64, 1000, 128, 6


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
        return self.head(x)


def update_of(device: str, *, size: int, recompute: bool = False, half: bool = False) -> Callable[[], object]:
    """Return a function that makes one update of all sequences, in micro-batches of a size."""
    torch.manual_seed(0)
    model = Model(recompute=recompute).to(device)
    accumulator = gg.Accumulator(torch.optim.AdamW(model.parameters(), foreach=False), model=model)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), device=device)

    def loss_fn(tokens: Tensor) -> tuple[Tensor, int]:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            logits = model(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()), tokens.numel()

    return lambda: accumulator.step_window(loss_fn, tokens.split(size))


def main() -> None:
    question = "Ways to a larger batch on a small device"
    given = arguments(question)
    ways = {
        "whole batch": update_of(given.device, size=64),
        "accumulation, 4 micro-batches of 16": update_of(given.device, size=16),
        "accumulation, 16 micro-batches of 4": update_of(given.device, size=4),
        "activation checkpointing": update_of(given.device, size=64, recompute=True),
        "bfloat16 autocast": update_of(given.device, size=64, half=True),
        "checkpointing, autocast, 4 micro-batches": update_of(
            given.device, size=16, recompute=True, half=True
        ),
    }
    times = alternate(ways, rounds=given.rounds or 10, warm_up=2, device=given.device)
    rows = ["### Peak memory", "", "| variant | MiB |", "|---|---|"]
    for name, way in ways.items():
        with peak_memory() as memory:
            way()
        rows.append(f"| {name} | {memory.peak_bytes / 2**20:.0f} |")
    report(question, ["\n".join(rows) + "\n", table("Time", times)], given.output)


if __name__ == "__main__":
    main()
