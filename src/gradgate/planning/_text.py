"""A plan in words and numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gradgate.planning._budget import written
from gradgate.planning._micro_batches import padding_of

if TYPE_CHECKING:
    from gradgate.planning._plan import Plan

_MODULES = 6


def to_text(plan: Plan) -> str:
    """Return what the memory is made of, the cut, and what the next larger one would need."""
    return "\n".join([*_memory(plan), "", *_cut(plan), *_remarks(plan)])


def _memory(plan: Plan) -> list[str]:
    stands, peak = plan.standing, max(part.peak_bytes for part in plan.parts)
    lines = [
        f"budget       {written(plan.budget_bytes)}",
        f"  parameters {written(stands.parameter_bytes)}, buffers among them",
        f"  gradients  {written(stands.gradient_bytes)}",
        "  optimizer  "
        + (
            "not counted: no optimizer was given"
            if stands.state_bytes is None
            else written(stands.state_bytes)
        ),
        f"  one pass   {written(peak)} at most",
        f"peak         {written(stands.total_bytes + peak)} "
        + (f"({(stands.total_bytes + peak) / plan.budget_bytes:.0%} of the budget)"),
    ]
    largest = max(plan.parts, key=lambda part: part.peak_bytes)
    added = plan.estimate.by_module(len(largest.indices), largest.length)
    modules = sorted(_grouped(added).items(), key=lambda item: -item[1])
    if modules:
        lines += ["", "a sample adds at the peak, by module"]
        lines += [
            f"  {written(size):>9}  {name or '(outside of modules)'}" for name, size in modules[:_MODULES]
        ]
        rest = sum(size for _, size in modules[_MODULES:])
        lines += [f"  {written(rest):>9}  {len(modules) - _MODULES} others"] if rest else []
    return lines


def _grouped(modules: dict[str, int]) -> dict[str, int]:
    """Put together what lies in one block of a list of blocks: "blocks.3.mlp.0" is "blocks.3"."""
    found: Counter[str] = Counter()
    for name, size in modules.items():
        parts = name.split(".")
        place = next((number for number, part in enumerate(parts) if part.isdigit()), 0)
        found[".".join(parts[: place + 1])] += size
    return dict(found)


def _cut(plan: Plan) -> list[str]:
    cut, padding = plan.parts, padding_of(plan.parts)
    sizes = [len(part.indices) for part in cut]
    samples = sum(sizes)
    lengths = [part.length for part in cut]
    listed = _run_lengths(sizes, in_order=bool(lengths[0]))
    lines = [f"cut          {samples} samples in {_micro_batches(len(cut))}: {listed}"]
    if lengths and lengths[0]:
        whole = samples * max(lengths)
        columns = sum(size * length for size, length in zip(sizes, lengths, strict=True))
        lines.append(f"lengths      {_run_lengths(lengths)}")
        lines.append(
            f"padding      {padding:.1%} of {columns:,} columns; uncut it would be "
            f"{1 - (1 - padding) * columns / whole:.0%} of {whole:,}"
        )
    if len(cut) > 1:
        fewer = len(cut) - 1
        if lengths[0]:  # two neighbours in one
            needed = min(plan.peak_bytes(sum(sizes[i : i + 2]), lengths[i + 1]) for i in range(fewer))
        else:
            needed = plan.peak_bytes(-(-samples // fewer))
        needed = plan.standing.total_bytes + max(needed, *(part.peak_bytes for part in cut))
        lines.append(f"next larger  {_micro_batches(fewer)} would need {written(needed)}")
    return lines


def _micro_batches(number: int) -> str:
    return f"{number} micro-batch{'es' if number != 1 else ''}"


def _run_lengths(numbers: list[int], *, in_order: bool = True) -> str:
    """Write numbers shortly: "6 x 72, 8 x 71", or "30, 28, ... 3"."""
    times = Counter(numbers)
    if len(times) < len(numbers) and (len(times) == 1 or (len(times) == 2 and not in_order)):
        return ", ".join(f"{count} x {number}" for number, count in times.items())
    shown = numbers if len(numbers) <= 8 else [*numbers[:4], *numbers[-3:]]
    texts = [str(number) for number in shown]
    if len(numbers) > 8:
        texts.insert(4, "...")
    return ", ".join(texts)


def _remarks(plan: Plan) -> list[str]:
    lines = []
    if not plan.foreseen:
        lines.append(f"measured     on small micro-batches, as fake tensors cannot run it: {plan.reason}")
    room = plan.budget_bytes - plan.standing.total_bytes
    if plan.estimate.doubt(room):
        margin = plan.estimate.margin(room)
        lines.append(
            f"uncertain    {plan.estimate.doubt(room)}, so {margin:.0%} of what varies is left alone"
        )
    if not plan.estimate.checked:
        lines.append(
            "unchecked    a real pass of a few samples would take too long, or several ranks were running"
        )
    lines += [
        f"not exact    {kind} mixes the samples of a micro-batch: a cut changes its statistics"
        for kind in plan.warnings
    ]
    return lines
