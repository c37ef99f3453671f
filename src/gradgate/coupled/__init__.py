"""The two passes of a loss over all items of a window, which let it see all representations at once."""

from gradgate.coupled._representations import Encode
from gradgate.coupled._two_passes import two_passes

__all__ = ["Encode", "two_passes"]
