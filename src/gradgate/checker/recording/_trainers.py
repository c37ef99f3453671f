"""Which trainer's library runs a backward pass, and accumulates."""

from __future__ import annotations

from typing import Any

from gradgate.call_sites import library_frames

# Where each calls backward in a window of its own, and not in one that the script makes.
_WINDOWS: dict[tuple[Any, str], str] = {
    ("lightning.pytorch.loops.optimization.automatic", "backward_fn"): "lightning",
    ("pytorch_lightning.loops.optimization.automatic", "backward_fn"): "lightning",
    ("transformers.trainer", "training_step"): "transformers",
}


def trainer_at_work() -> str:
    """Return the name of the library in whose window this thread calls backward, or "" in the script's own loop."""
    found = ""
    for frame in library_frames():
        place = frame.f_globals.get("__name__"), frame.f_code.co_name
        if place == ("accelerate.accelerator", "backward"):
            steps = getattr(frame.f_locals.get("self"), "gradient_accumulation_steps", 1)
            found = "accelerate" if steps > 1 else ""
        found = _WINDOWS.get(place, found)
    return found
