"""What do contrastive losses without the matrix of logits cost, relative to the plain formula?

Only forward and backward of the loss are measured, for existing representations. Memory is counted twice: the
bytes of live tensors beyond the representations, operation by operation; and, on Linux, by how much the peak of a
process's own memory (resident set) rises, gradients and torch's workspaces included. Time is relative to the plain
formula, at the largest batch for which it fits in 4 GiB.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from _alternate import alternate, arguments, report, table
from torch import Tensor

from gradgate import losses
from gradgate.planning import peak_memory

FITS, LARGE, WIDTH = 8192, 32768, 256  # rows, and their length


def plain_info_nce(queries: Tensor, keys: Tensor) -> Tensor:
    return F.cross_entropy(queries @ keys.T / 0.07, torch.arange(len(queries), device=queries.device))


def plain_clip(left: Tensor, right: Tensor) -> Tensor:
    logits, own = left @ right.T / 0.07, torch.arange(len(left), device=left.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def plain_siglip(left: Tensor, right: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(left), device=left.device) - 1
    return -F.logsigmoid(signs * (left @ right.T / 0.1 - 10)).sum() / len(left)


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "info_nce": (plain_info_nce, losses.info_nce),
    "clip_loss": (plain_clip, losses.clip_loss),
    "siglip_loss": (plain_siglip, losses.siglip_loss),
}


def made(rows: int, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    left, right = (F.normalize(torch.randn(rows, WIDTH, device=device), dim=1) for _ in range(2))
    return left.requires_grad_(), right.requires_grad_()


def once(loss_fn: Callable[..., Tensor], left: Tensor, right: Tensor) -> None:
    left.grad = right.grad = None
    loss_fn(left, right).backward()


def peak_rss_bytes() -> int:
    """Return the peak of this process's resident set. (``ru_maxrss`` begins with that of the parent process.)"""
    (line,) = (
        each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def measure_process(name: str, rows: int) -> None:
    """Print by how much one forward and backward pass raises this process's peak, in bytes."""
    once(CASES[name][1], *made(64, "cpu"))  # libraries are loaded, threads started
    left, right = made(rows, "cpu")
    before = peak_rss_bytes()
    once(CASES[name][1], left, right)
    print(peak_rss_bytes() - before)


def in_a_process(name: str, rows: int) -> int:
    found = subprocess.run(
        [sys.executable, __file__, "--process", name, str(rows)], check=True, capture_output=True, text=True
    )
    return int(found.stdout)


def main() -> None:
    question = "Contrastive losses without the matrix of logits"
    given = arguments(question)
    sections = []
    left, right = made(FITS, given.device)
    for name, (plain, ours) in CASES.items():
        ways = {
            "plain formula": partial(once, plain, left, right),
            f"gg.losses.{name}": partial(once, ours, left, right),
        }
        results = alternate(ways, rounds=given.rounds or 5, warm_up=1, device=given.device)
        sections.append(table(f"{name}, {FITS:,} rows of {WIDTH}", results))
    rows = [
        "| loss | rows | plain formula, MiB | gradgate, MiB | gradgate, resident set, MiB |",
        "|---|---|---|---|---|",
    ]
    for count in (FITS, LARGE):
        left, right = made(count, given.device)
        for name, ways in CASES.items():
            # At the larger size, the plain formula takes at least one matrix, so it isn't run.
            found = [f"over {count**2 * 4 / 2**20:,.0f}"] if count == LARGE else []
            for way in ways[len(found) :]:
                with peak_memory() as memory:
                    once(way, left, right)
                found.append(f"{memory.peak_bytes / 2**20:,.0f}")
            resident = in_a_process(name, count) if sys.platform == "linux" else 0
            rows.append(f"| {name} | {count:,} | {found[0]} | {found[1]} | {resident / 2**20:,.0f} |")
    sections.append(
        "### Peak memory beyond the representations, including their gradients\n\n" + "\n".join(rows) + "\n"
    )
    report(question, sections, given.write)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        measure_process(sys.argv[2], int(sys.argv[3]))
    else:
        main()
