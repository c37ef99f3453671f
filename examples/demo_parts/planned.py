"""A plan for the help texts: one window, split by hand and by plan, in the same memory."""

import torch
from rich.console import Console
from torch.optim import AdamW

import gradgate as gg

from .task import NO_TARGET, Pair, Task, Window, mean_loss


def show_plan(task: Task, console: Console) -> None:
    """Plan a window of the task within the memory of its usual micro-batches, and print the savings."""
    window: Window = next(iter(task.windows(0)))
    model = task.make_model()
    optimizer = AdamW(model.parameters(), lr=task.learning_rate)

    def loss_fn(batch: Pair) -> tuple[torch.Tensor, torch.Tensor]:
        return mean_loss(model, *batch)

    def lengths(batch: Pair) -> torch.Tensor:
        return batch[1] != NO_TARGET

    widest = max(window, key=lambda pair: pair[0].numel())[0].shape
    generous = gg.plan(loss_fn, task.join(window), budget_bytes="1TiB", lengths=lengths, optimizer=optimizer)
    budget = generous.resident.total_bytes + generous.peak_bytes(*widest)
    plan = gg.plan(loss_fn, task.join(window), budget_bytes=budget, lengths=lengths, optimizer=optimizer)
    by_hand = sum(x.numel() for x, _ in window)
    by_plan = sum(len(part.indices) * part.length for part in plan.parts)
    console.print(f"\n[bold]The same window by plan[/], in the memory of its usual micro-batches\n\n{plan}\n")
    console.print(
        f"Columns to compute: {by_hand} by hand, {by_plan} by plan, for {sum(part.count for part in plan.parts)} "
        "characters. The update is the same."
    )
