"""How much memory there is, and how it is written."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from gradgate.errors import OptionError

_UNITS = {"B": 1, **{f"{prefix}B": 1000**n for n, prefix in enumerate("KMGT", 1)}} | {
    f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", 1)
}
_WRITTEN = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?i?B)\s*", re.IGNORECASE)
MARGIN = 0.1  # of what is free, left alone where no budget is given


def as_bytes(budget: float | str) -> int:
    """Return a budget in bytes: a number, or a text such as "8GiB" or "500 MB".

    Raises:
        OptionError: it is neither, or not above 0.
    """
    found = _WRITTEN.fullmatch(budget) if isinstance(budget, str) else None
    if found is not None:
        units = {unit.lower(): factor for unit, factor in _UNITS.items()}
        if found["unit"].lower() in units:
            budget = float(found["number"]) * units[found["unit"].lower()]
    if isinstance(budget, (str, bool)) or not 0 < float(budget) < float("inf"):
        raise OptionError(
            f'plan: budget_bytes is {budget!r}; it is a number of bytes above 0, or a text with a unit: "8GiB".'
        )
    return int(budget)


def free_bytes(device: torch.device) -> int:
    """Return what a device has free for this process, a cache of torch's own included.

    Raises:
        OptionError: the device does not say.
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
        f'plan: how much memory is free on {device} cannot be told here. Pass budget_bytes="8GiB", for example.'
    )


def written(number: float) -> str:
    """Return bytes for reading: "3.2 GiB"."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(number) >= factor:
            return (
                f"{number / factor:.3g} {unit}"
                if abs(number) < 1000 * factor
                else f"{number / factor:,.0f} {unit}"
            )
    return f"{number:.0f} B"
