"""Parses memory sizes such as "8GiB", and formats bytes for reading."""

from __future__ import annotations

import re

from gradgate.errors import OptionError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B\s*", re.IGNORECASE)


def as_bytes(budget: float | str, verb: str = "plan", option: str = "budget_bytes") -> int:
    """Return a budget in bytes, from a number or a string such as "8GiB" or "500 MB".

    Args:
        budget: as the caller passed it.
        verb: the name of the public function, for the message.
        option: the name of its argument.

    Raises:
        OptionError: the budget cannot be read, or is not above 0.
    """
    found = _SIZE.fullmatch(budget) if isinstance(budget, str) else None
    if found is not None:
        prefix = (found[2] or "").lower()
        budget = float(found[1]) * (1024 if "i" in prefix else 1000) ** " kmgt".index(prefix[:1] or " ")
    if isinstance(budget, (str, bool)) or not 0 < float(budget) < float("inf"):
        raise OptionError(
            f'{verb}: {option} is {budget!r}. Pass a number of bytes above 0, or a string with a unit: "8GiB".'
        )
    return int(budget)


def format_bytes(size: float) -> str:
    """Return a number of bytes as text: "3.2 GiB"."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(size) >= factor:
            value = size / factor
            return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"
    return f"{size:.0f} B"
