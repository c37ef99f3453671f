"""Records which open update owns which parameters, and which parameters train only some of their entries.

Until an update ends, no other update may fill the gradients of its parameters.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

claims: dict[int, Sequence[Tensor]] = {}
"""Maps the id of an accumulator's state to the parameters that its open update owns."""


def claimed() -> set[int]:
    """Return the ids of all parameters that an open update owns."""
    return {id(parameter) for owned in claims.values() for parameter in owned}


chosen_entries: Any = WeakTensorKeyDictionary()
"""Maps each parameter that trains only some entries to a checksum of these entries."""


def checksum(parameters: Sequence[Tensor]) -> int:
    """Return a checksum of which entries train, to compare ranks. It is 0 if all entries train."""
    parts = [
        f"{index} {parameter.requires_grad} {chosen_entries.get(parameter)}"
        for index, parameter in enumerate(parameters)
        if not parameter.requires_grad or (chosen_entries and parameter in chosen_entries)
    ]
    return zlib.crc32(" ".join(parts).encode()) if parts else 0
