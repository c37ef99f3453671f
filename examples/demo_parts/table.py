"""Show a comparison as a table, and as two sentences made from its numbers."""

from rich import box
from rich.table import Table

from .compare import Comparison

MIB = 2**20


def table(comparison: Comparison) -> Table:
    """Return a table of distance after each epoch, peak memory, time and score."""
    task = comparison.task
    runs = (comparison.whole, comparison.gradgate, comparison.by_hand)
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown.add_column(task.name, min_width=34)
    for name in ("whole batch", "gradgate", "by hand"):
        shown.add_column(name, justify="right", min_width=11)
    rows = zip(
        comparison.after_epochs(comparison.gradgate_distance),
        comparison.after_epochs(comparison.by_hand_distance),
        strict=True,
    )
    for epoch, (exact, hand) in enumerate(rows, start=1):
        shown.add_row(f"distance after epoch {epoch}", "-", f"{exact:.1e}", f"{hand:.1e}")
    shown.add_section()
    shown.add_row("peak memory", *(f"{run.peak_bytes / MIB:.1f} MiB" for run in runs))
    shown.add_row("time", *(f"{run.seconds:.1f} s" for run in runs))
    shown.add_row(task.score_name, *(f"{run.score:{task.score_format}}" for run in runs))
    return shown


def in_words(comparison: Comparison) -> str:
    """Describe what the numbers show, good or bad."""
    task, whole = comparison.task, comparison.whole
    exact, hand = comparison.gradgate_distance[-1], comparison.by_hand_distance[-1]
    verdict = "no more than rounding" if comparison.exact else "MORE THAN ROUNDING EXPLAINS"
    memory = comparison.gradgate.peak_bytes / whole.peak_bytes
    return (
        f"gradgate ended within {exact:.0e} of where the whole batch ended: {verdict} in "
        f"{dtype_of(comparison)}, with {memory:.0%} of its peak memory. By hand, the same micro-batches ended "
        f"{hand:.1%} of the trained distance away ({task.score_name} "
        f"{comparison.by_hand.score:{task.score_format}} instead of {whole.score:{task.score_format}})."
    )


def dtype_of(comparison: Comparison) -> str:
    """Return the name of the parameters' dtype, as "float64"."""
    return str(comparison.whole.parameters[0].dtype).removeprefix("torch.")
