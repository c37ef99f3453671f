"""Show the progress of training: a bar in a terminal, one short line per epoch elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .task import Task

OnUpdate = Callable[[int, float], None]


@contextmanager
def progress(console: Console, task: Task, way: str) -> Iterator[OnUpdate]:
    """Yield a callback for each update, which takes the update's number and loss."""
    if console.is_terminal and not console.is_dumb_terminal:
        with bar(console, task, way) as on_update:
            yield on_update
    else:
        yield lines(console, task, way)


@contextmanager
def bar(console: Console, task: Task, way: str) -> Iterator[OnUpdate]:
    """Yield a callback that moves a bar. The bar stays on screen when it is full."""
    columns = (
        TextColumn("  {task.description:<12}"),
        BarColumn(bar_width=24),
        TextColumn("epoch {task.fields[epoch]}/" + str(task.epochs)),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as shown:
        total = task.epochs * task.updates_per_epoch
        row = shown.add_task(way, total=total, epoch=1, loss="  -  ")

        def on_update(update: int, loss: float) -> None:
            epoch = -(-update // task.updates_per_epoch)
            shown.update(row, completed=update, epoch=epoch, loss=f"{loss:.3f}")

        yield on_update


def lines(console: Console, task: Task, way: str) -> OnUpdate:
    """Return a callback that prints a line at the end of each epoch."""

    def on_update(update: int, loss: float) -> None:
        epoch, rest = divmod(update, task.updates_per_epoch)
        if rest == 0:
            console.print(f"  {way:<12} epoch {epoch}/{task.epochs}  loss {loss:.3f}")

    return on_update
