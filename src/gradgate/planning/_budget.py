"""How much memory there is, and how sizes are read and written."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from gradgate.errors import OptionError

FREE_MARGIN = 0.1  # share of the free memory that is not used where no budget is given
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B\s*", re.IGNORECASE)


def as_bytes(budget: float | str) -> int:
    """Return a budget in bytes; it is a number or a string such as "8GiB" or "500 MB".

    Raises:
        OptionError: it is neither, or not above 0.
    """
    found = _SIZE.fullmatch(budget) if isinstance(budget, str) else None
    if found is not None:
        prefix = (found[2] or "").lower()
        budget = float(found[1]) * (1024 if "i" in prefix else 1000) ** " kmgt".index(prefix[:1] or " ")
    if isinstance(budget, (str, bool)) or not 0 < float(budget) < float("inf"):
        raise OptionError(
            f'plan: budget_bytes is {budget!r}. Pass a number of bytes above 0, or a string with a unit: "8GiB".'
        )
    return int(budget)


def free_bytes(device: torch.device) -> int:
    """Return how much memory of a device this process can still use, torch's cache included.

    Raises:
        OptionError: there is no way to find out.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    meminfo = Path("/proc/meminfo")
    if device.type == "cpu" and meminfo.is_file():
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OptionError(
        f'plan: cannot find out how much memory is free on {device}. Pass it: budget_bytes="8GiB", for example.'
    )


def format_bytes(size: float) -> str:
    """Return bytes for reading: "3.2 GiB"."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(size) >= factor:
            value = size / factor
            return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"
    return f"{size:.0f} B"
