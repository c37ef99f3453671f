"""Losses over all items of a window: two passes let the loss see all representations at once."""

from gradgate.accumulation.coupled._coupled_window import CoupledWindow
from gradgate.accumulation.coupled._representations import Encode

__all__ = ["CoupledWindow", "Encode"]
