"""Records which open update owns which parameters. Until it ends, no other update may fill their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

claims: weakref.WeakKeyDictionary[Any, Sequence[Tensor]] = weakref.WeakKeyDictionary()
"""Open updates, and the parameters that they own."""


def claimed() -> set[int]:
    """Return the ids of all parameters that an open update owns."""
    return {id(parameter) for owned in claims.values() for parameter in owned}
