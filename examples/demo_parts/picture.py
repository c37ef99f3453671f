"""Draw the comparisons: the distance over the updates, with the peak memory next to it."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from .compare import Comparison
from .table import MIB, dtype_of

# Okabe and Ito's colors, which color-blind readers can tell apart.
GRADGATE, BY_HAND, WHOLE = "#0072B2", "#D55E00", "#767676"
INK, MUTED, FAINT, ROUNDING = "#222222", "#5F5F5F", "#DDDDDD", "#E8F1F8"
LEFT = 0.068  # where text and axes begin, as a fraction of the width


def draw(comparisons: list[Comparison], path: Path) -> None:
    """Draw one row per task and save the picture."""
    height = 1.75 + 2.95 * len(comparisons)  # inches
    figure = Figure(figsize=(11.4, height), dpi=150, facecolor="white")
    figure.text(
        LEFT, 1 - 0.42 / height, headline(comparisons), size=18, weight="bold", color=INK, va="center"
    )
    figure.text(LEFT, 1 - 0.83 / height, subtitle(comparisons), size=12.5, color=INK, va="center")
    grid = figure.add_gridspec(
        nrows=len(comparisons),
        ncols=2,
        width_ratios=(2.2, 1),
        left=LEFT,
        right=0.975,
        top=1 - 1.72 / height,
        bottom=0.6 / height,
        hspace=0.62,
        wspace=0.56,
    )
    for row, comparison in enumerate(comparisons):
        draw_distance(figure.add_subplot(grid[row, 0]), comparison)
        draw_memory(figure.add_subplot(grid[row, 1]), comparison)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def headline(comparisons: list[Comparison]) -> str:
    """State the result that the numbers show."""
    memory = span([c.gradgate.peak_bytes / c.whole.peak_bytes for c in comparisons])
    if all(c.exact for c in comparisons):
        return f"gradgate ends where the whole batch ends, in {memory} of its memory"
    return f"gradgate misses the whole batch by up to {max(c.gradgate_distance[-1] for c in comparisons):.0e}"


def subtitle(comparisons: list[Comparison]) -> str:
    """State the result of the hand-written loop."""
    off = span([c.by_hand_distance[-1] for c in comparisons])
    return (
        "The usual hand-written loop, with the same micro-batches in the same order, "
        f"is off by {off} of the distance trained."
    )


def span(fractions: list[float]) -> str:
    """Return the smallest and the largest fraction in percent, or one number if both round to it."""
    low, high = f"{min(fractions):.0%}", f"{max(fractions):.0%}"
    return low if low == high else f"{low[:-1]}\N{EN DASH}{high}"


def draw_distance(axes: Axes, comparison: Comparison) -> None:
    """Draw both distances over the updates on one logarithmic axis, and label each line at its end."""
    updates = range(1, len(comparison.by_hand_distance) + 1)
    for distance, color, name, end in (
        (comparison.by_hand_distance, BY_HAND, "by hand", f"{comparison.by_hand_distance[-1]:.0%}"),
        (comparison.gradgate_distance, GRADGATE, "gradgate", power(comparison.gradgate_distance[-1])),
    ):
        axes.plot(updates, distance, color=color, linewidth=2.4, solid_capstyle="round")
        beside(axes, f"{name}\n{end}", len(updates), distance[-1], color, weight="bold")
    head(
        axes,
        comparison.task.name,
        "Distance from the whole batch's parameters, relative to how far these have moved",
    )
    low = comparison.rounding / 1e6
    axes.set(yscale="log", ylim=(low, 10), xlim=(0, len(updates)))
    axes.axhspan(low, comparison.rounding, color=ROUNDING, linewidth=0, zorder=0)
    axes.annotate(
        f"no more than rounding in {dtype_of(comparison)}",
        (0, low),
        (7, 6),
        textcoords="offset points",
        size=10,
        color=MUTED,
        va="bottom",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(LogLocator(base=1000, numticks=8))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_xlabel("update", size=10.5, color=INK)
    plain(axes, without=("top", "right", "left"))


def draw_memory(axes: Axes, comparison: Comparison) -> None:
    """Draw the three peaks as labeled bars."""
    whole = comparison.whole.peak_bytes
    for row, (name, run, color) in enumerate(
        (
            ("whole batch", comparison.whole, WHOLE),
            ("gradgate", comparison.gradgate, GRADGATE),
            ("by hand", comparison.by_hand, BY_HAND),
        )
    ):
        axes.barh(row, run.peak_bytes, color=color, height=0.6)
        fraction = "" if run is comparison.whole else f"  ({run.peak_bytes / whole:.0%})"
        beside(axes, f"{run.peak_bytes / MIB:.0f} MiB{fraction}", run.peak_bytes, row, INK)
        axes.annotate(
            name,
            (0, row),
            (-8, 0),
            textcoords="offset points",
            size=11.5,
            color=color,
            weight="bold",
            va="center",
            ha="right",
        )
    head(axes, "", "Peak memory of an update")
    axes.set(xlim=(0, 1.36 * whole), ylim=(2.5, -0.5), xticks=[], yticks=[])
    plain(axes, without=("top", "right", "left", "bottom"))


def beside(axes: Axes, text: str, x: float, y: float, color: str, **style: Any) -> None:
    """Write text to the right of a point."""
    axes.annotate(
        text,
        (x, y),
        (8, 0),
        textcoords="offset points",
        size=11.5,
        color=color,
        va="center",
        annotation_clip=False,
        **style,
    )


def head(axes: Axes, title: str, what: str) -> None:
    """Write a panel's title above the panel, and below the title what the panel measures."""
    for text, height, style in ((title, 27, {"size": 13, "weight": "bold"}), (what, 10, {"size": 10.5})):
        axes.annotate(
            text,
            (0, 1),
            (0, height),
            xycoords="axes fraction",
            textcoords="offset points",
            color=INK,
            **style,
        )


def power(number: float) -> str:
    """Format a small number as a power of ten: 1 × 10 to the -15."""
    if number == 0:
        return "0"
    digit, exponent = f"{number:.0e}".split("e")
    return rf"{digit} × 10$\mathbf{{^{{{int(exponent)}}}}}$"


def plain(axes: Axes, *, without: tuple[str, ...]) -> None:
    """Remove spines and ticks that carry no information."""
    axes.spines[list(without)].set_visible(False)
    axes.tick_params(which="both", colors=INK, labelsize=10, length=0)
