"""The two passes of a loss over all items of a window, which let it see all representations at once."""

from gradgate.coupled._representations import Encode, Encoder
from gradgate.coupled._two_passes import two_passes

__all__ = ["Encode", "Encoder", "two_passes"]
