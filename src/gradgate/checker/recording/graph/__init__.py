"""Reads from a graph what only the checker asks: how a loss combines its values."""

from gradgate.checker.recording.graph._broadcasts import broadcast_at
from gradgate.checker.recording.graph._cancelled import cancelled, sides_are_equal
from gradgate.checker.recording.graph._driven import driven
from gradgate.checker.recording.graph._layers import is_half
from gradgate.checker.recording.graph._loss_inputs import normalized_twice, not_log_probabilities

__all__ = [
    "broadcast_at",
    "cancelled",
    "driven",
    "is_half",
    "normalized_twice",
    "not_log_probabilities",
    "sides_are_equal",
]
