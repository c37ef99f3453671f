"""The summary of a plan: rows of a label and a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradgate.byte_sizes import format_bytes
from gradgate.planning._estimate import Estimate
from gradgate.planning._memory import ResidentMemory
from gradgate.planning._micro_batches import Part, counted, padding_of

_MOST_MODULES = 6


@dataclass(frozen=True)
class SummaryRow:
    """A label and a text."""

    label: str = ""
    text: str = ""


def summary_rows(
    parts: Sequence[Part], estimate: Estimate, resident: ResidentMemory, budget_bytes: int
) -> Iterator[SummaryRow]:
    """Yield the memory by kind, the split, and the memory that the next larger micro-batches would need."""

    def memory(label: str, size: int, more: str = "") -> SummaryRow:
        return SummaryRow(label, format_bytes(size) + more)

    largest = max(parts, key=lambda part: part.peak_bytes)
    peak = resident.total_bytes + largest.peak_bytes
    yield memory("budget", budget_bytes)
    yield memory("  parameters", resident.parameter_bytes, ", including buffers")
    yield memory("  gradients", resident.gradient_bytes)
    if resident.state_bytes is None:
        yield SummaryRow("  optimizer", f"not counted: {resident.unknown_state}")
    else:
        yield memory("  optimizer", resident.state_bytes)
    yield memory("  one pass", largest.peak_bytes, " at most")
    yield memory("peak", peak, f" ({peak / budget_bytes:.0%} of the budget)")
    yield from _module_rows(estimate.by_module(len(largest.indices), largest.length))
    yield SummaryRow()
    yield from _split_rows(parts, estimate, resident)
    if estimate.measured:
        yield SummaryRow("measured", f"on small micro-batches: {estimate.measured}")
    available = budget_bytes - resident.total_bytes
    uncertainty = estimate.uncertainty(available)
    if uncertainty:
        yield SummaryRow(
            "uncertain",
            f"{uncertainty}; {estimate.margin(available):.0%} of a pass's memory is left unused",
        )
    if estimate.unchecked:
        yield SummaryRow("unchecked", estimate.unchecked)
    if estimate.has_batch_norm:
        yield SummaryRow(
            "not exact", "batch norm mixes the samples of a micro-batch: a split changes its statistics"
        )


def _module_rows(added: dict[str, int]) -> Iterator[SummaryRow]:
    """Yield a row per module with the bytes it adds. A block of a list is one row: "blocks.3", not "blocks.3.0"."""
    sizes: Counter[str] = Counter()
    for name, size in added.items():
        keys = name.split(".")
        block = next((index for index, key in enumerate(keys) if key.isdigit()), 0)
        sizes[".".join(keys[: block + 1])] += size
    if sizes:
        yield SummaryRow()
        yield SummaryRow("a sample adds at the peak, by module")
    for name, size in sizes.most_common(_MOST_MODULES):
        yield SummaryRow(f"  {format_bytes(size):>9}", name or "(outside of modules)")
    rest = sizes.most_common()[_MOST_MODULES:]
    if rest:
        total = format_bytes(sum(size for _, size in rest))
        yield SummaryRow(f"  {total:>9}", f"{len(rest)} others")


def _split_rows(parts: Sequence[Part], estimate: Estimate, resident: ResidentMemory) -> Iterator[SummaryRow]:
    sizes, lengths = [len(part.indices) for part in parts], [part.length for part in parts]
    samples, has_lengths = sum(sizes), bool(lengths[0])
    listed = _listed(sizes, in_order=has_lengths)
    yield SummaryRow("split", f"{samples} samples in {counted(len(parts))}: {listed}")
    if has_lengths:
        whole = samples * max(lengths)
        columns = sum(size * length for size, length in zip(sizes, lengths, strict=True))
        padding = padding_of(parts)
        unsplit = 1 - (1 - padding) * columns / whole
        yield SummaryRow("lengths", _listed(lengths))
        yield SummaryRow(
            "padding", f"{padding:.1%} of {columns:,} columns; unsplit it would be {unsplit:.0%} of {whole:,}"
        )
    fewer = len(parts) - 1
    if fewer:
        if has_lengths:  # merge two neighbors
            merged = [sum(sizes[i : i + 2]) for i in range(fewer)]
            needed = min(estimate.peaks(merged, lengths[1:]))
        else:
            (needed,) = estimate.peaks([-(-samples // fewer)], [0])
        needed = resident.total_bytes + max(needed, *(part.peak_bytes for part in parts))
        yield SummaryRow("next larger", f"{counted(fewer)} would need {format_bytes(needed)}")


def _listed(numbers: list[int], *, in_order: bool = True) -> str:
    """Return numbers as "6 x 72, 8 x 71", or as "30, 28, ... 3"."""
    times = Counter(numbers)
    if len(times) < len(numbers) and (len(times) == 1 or (len(times) == 2 and not in_order)):
        return ", ".join(f"{count} x {number}" for number, count in times.items())
    texts = [str(number) for number in numbers]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]])
