"""Records which open update owns which parameters, and which parameters train only some of their rows.

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


trained_rows: Any = WeakTensorKeyDictionary()
"""Maps each parameter that trains only some rows to these rows, whose ``checksum`` is that of their ids."""


def checksum(parameters: Sequence[Tensor]) -> int:
    """Return a checksum of which rows train, to compare ranks. It is 0 if all rows train."""
    parts = [
        f"{index} {parameter.requires_grad} {getattr(trained_rows.get(parameter), 'checksum', None)}"
        for index, parameter in enumerate(parameters)
        if not parameter.requires_grad or (trained_rows and parameter in trained_rows)
    ]
    return zlib.crc32(" ".join(parts).encode()) if parts else 0
