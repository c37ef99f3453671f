"""An update as a table, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradgate.notebook_tables import card

if TYPE_CHECKING:
    from gradgate.accumulation._readings import Readings


def to_html(update: Readings, state: str) -> str:
    """Return what the update came to, if it has ended; how far it is, or was, if not."""
    batches = f"{update.micro_batch_count} micro-batch{'' if update.micro_batch_count == 1 else 'es'}"
    if state != "ended":
        return card("Update", f"{state}, after {batches}", [])
    said = f"{batches}, " + ("stepped" if update.stepped else "skipped: nothing was stepped")
    losses = update.losses
    rows = [["loss", f"{update.loss:.6g}", f"over {update.count:,} items"]] if len(losses) == 1 else []
    if len(losses) > 1:
        rows = [[name, f"{one.mean:.6g}", f"over {one.count:,} items"] for name, one in losses.items()]
    rows.append(["gradient norm", f"{update.grad_norm:.6g}", ""])
    return card("Update", said, rows)
