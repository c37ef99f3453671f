"""Cells as text, and rows of cells as Markdown tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from ._measure import Cell
from ._rows import UNITS

EXACT, NEARLY = 1e-10, 1e-5  # float64 rounding; a weight or a sum that a tool keeps in float32
WINDOW = 64 // UNITS["memory"]  # units in a whole update of the memory row

Results = Mapping[str, "dict[str, list[Cell]] | str"]  # by tool; a string says why there is nothing


def number(value: float) -> str:
    """Format a number with one or two significant digits."""
    return f"{value:.2g}" if value >= 0.05 else f"{value:.0e}".replace("e-0", "e-")


def size(errors: Sequence[float]) -> str:
    worst = max(errors)
    if worst <= EXACT:
        return "exact"
    return f"exact to {number(worst)}" if worst <= NEARLY else number(statistics.median(errors))


def of_error(cell: Cell) -> str:
    return size(cell["errors"])


def of_sums(cell: Cell) -> str:
    return number(statistics.median(cell["sums"]))


def with_warning(cell: Cell) -> str:
    return f"{of_error(cell)}, {'warns' if cell['said'] else 'silent'}"


def of_tail(cell: Cell) -> str:
    steps = [step and (step[0], step[1], round(step[2], 4)) for step in cell["steps"]]
    if steps == [(0, 4, 1), (4, 6, 1)] * 2:
        return "exact"
    if len(steps) == 4 and steps[1] and steps[1][:2] == (4, 6):
        return f"step × {steps[1][2]:g}"
    if len(steps) > 1 and steps[1] and steps[1] != (0, 4, 1):
        return "leaks into the next epoch"
    return f"steps {steps}"


def of_memory(cell: Cell) -> str:
    steps = cell["steps"]
    if "type" in cell:
        left = ", half a window left in .grad" if cell["left"] else ", rolled back"
        return f"crash{left}" if cell["type"] == "OutOfMemoryError" else f"{cell['type']}: {cell['words']}"
    if [step and step[:2] for step in steps] == [[0, WINDOW], [WINDOW, 2 * WINDOW]]:
        return "exact, goes on"
    after = steps[1]
    if after is None:
        return "another gradient"
    samples = UNITS["memory"] * (after[1] - after[0])
    return f"batch of {samples} instead of 64{', starts again' if after[0] == 0 else ''}"


def of_time(cell: Cell) -> str:
    return f"{cell['ratio']:.2f} ({cell['low']:.2f} to {cell['high']:.2f})"


def of_time_shortly(cell: Cell) -> str:
    return f"{cell['ratio']:.1f}"


Say = Callable[[Cell], str]
ROWS: list[tuple[str, str, Say]] = [
    ("equal", "4 equal micro-batches of 32", of_error),
    ("sizes", "sizes 32, 32, 32, 4", of_error),
    ("tokens", "valid tokens 3, 64, 8, 31", of_error),
    ("tail", "last window shorter, 2 of 4", of_tail),
    ("bf16", "64 bf16 micro-batches", of_error),
    ("bf16", "... of it, by adding them up", of_sums),
    ("coupled", "InfoNCE over the batch", with_warning),
    ("batch_norm", "BatchNorm in training mode", with_warning),
    ("memory", "out of memory amid the 2nd update", of_memory),
    ("time", "time per update, tiny model (middle half)", of_time),
]


def say(words: Say, cell: Cell) -> str:
    return f"fails: {cell['type']}: {cell['words']}" if cell["kind"] == "failed" else words(cell)


def main_table(titles: Mapping[str, str], results: Results) -> str:
    """Each tool with its defaults. A star: an option of the tool changes this."""
    lines = [line(["", *titles.values()]), line(["---"] * (1 + len(titles)))]
    for row, title, words in ROWS:
        lines.append(line([title, *(shown(results[tool], row, words) for tool in titles)]))
    return "\n".join(lines) + "\n"


def shown(rows: "dict[str, list[Cell]] | str", row: str, words: Say) -> str:
    if isinstance(rows, str):
        return rows
    first, *options = rows[row]
    return say(words, first) + (" \\*" if options else "")


def option_table(titles: Mapping[str, str], results: Results) -> str:
    lines = [line(["tool", "with", "situation", "as it comes", "so"]), line(["---"] * 5)]
    for tool, title in titles.items():
        rows = results[tool]
        if isinstance(rows, str):
            continue
        for row, situation, words in ROWS:
            first, *options = rows[row]
            lines += [
                line([title, option["option"], situation, say(words, first), say(words, option)])
                for option in options
            ]
    return "\n".join(lines) + "\n"


def spread_table(titles: Mapping[str, str], results: Results) -> str:
    """The lowest and the highest error of the seeds, for rows of numbers."""
    lines = [line(["", *titles.values()]), line(["---"] * (1 + len(titles)))]
    for row, title, words in ROWS:
        cells = ["" if isinstance(rows, str) else spread(rows[row][0], words) for rows in results.values()]
        if any(cells):
            lines.append(line([title, *cells]))
    return "\n".join(lines) + "\n"


def spread(cell: Cell, words: Say) -> str:
    values = cell.get("sums" if words is of_sums else "errors")
    return f"{number(min(values))} to {number(max(values))}" if values else ""


def short_table(titles: Mapping[str, str], results: Results) -> str:
    """For the README: out of memory with the best option, everything else with defaults."""
    short = {tool: title.split(" ")[0] if tool != "plain" else "plain loop" for tool, title in titles.items()}
    short = {**short, "transformers": "Trainer"} if "transformers" in short else short
    lines = [line(["", *short.values()]), line(["---"] * (1 + len(short)))]
    for row, title, words in ROWS:
        cells = []
        for tool in short:
            rows = results[tool]
            if isinstance(rows, str):
                cells.append(rows)
            elif row == "memory":
                cells.append(of_memory(rows[row][-1]).split(",")[0])
            elif row == "time":
                cells.append(of_time_shortly(rows[row][0]))
            else:
                first, *options = (say(words, cell) for cell in rows[row])
                mended = not first.startswith("exact") and any(one.startswith("exact") for one in options)
                cells.append(first + (" \\*" if mended else ""))
        lines.append(line([title.removesuffix(" (middle half)"), *cells]))
    return "\n".join(lines) + "\n"


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
