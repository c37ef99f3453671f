"""How much memory does an update take, relative to the plain loop and the whole batch at once?

The bytes of live tensors are counted operation by operation, so every run gives the same figures. Parameters and
optimizer state exist beforehand and are not counted. Gradients and activations are.
"""

from collections.abc import Callable
from functools import partial

import torch
from _alternate import arguments, report
from _models import Batch, Transformer, exact_update, loss_of, medium, plain_update, tiny
from torch import nn

import gradgate as gg
from gradgate.planning import peak_memory


def peak(run: Callable[[], object]) -> int:
    run()  # the first step creates the optimizer's state
    with peak_memory() as memory:
        run()
    return memory.peak_bytes


def measured(model: nn.Module, batches: list[Batch]) -> dict[str, int]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    accumulator = gg.Accumulator(optimizer)

    def whole() -> None:
        loss_of(model, tuple(torch.cat(parts) for parts in zip(*batches, strict=True))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {
        "whole batch at once": peak(whole),
        "plain loop": peak(partial(plain_update, model, batches, optimizer)),
        "gradgate": peak(partial(exact_update, model, batches, accumulator)),
    }


def main() -> None:
    question = "Peak memory of an update"
    given = arguments(question)
    rows = ["| model | way | peak, bytes | against the plain loop |", "|---|---|---|---|"]
    torch.manual_seed(0)
    long = [(x.repeat(4, 1), y.repeat(4, 1)) for x, y in medium(given.device)[1]]
    cases = {
        "tiny": tiny(given.device),
        "medium": medium(given.device),
        "medium, 4 times the batch": (Transformer().to(given.device), long),
    }
    for name, (model, batches) in cases.items():
        results = measured(model, batches)
        for way, bytes_ in results.items():
            rows.append(f"| {name} | {way} | {bytes_:,} | {bytes_ / results['plain loop']:.4f} |")
    report(question, ["\n".join(rows) + "\n"], given.write)


if __name__ == "__main__":
    main()
