"""Reads from a graph what only the checker asks: how a loss combines its values."""

from gradgate.checker.recording.graph._broadcasts import broadcast_at, node_shape
from gradgate.checker.recording.graph._distances import (
    are_apart,
    compared_views,
    detached_in_one_term,
)
from gradgate.checker.recording.graph._driven import driven
from gradgate.checker.recording.graph._layers import is_half
from gradgate.checker.recording.graph._loss_inputs import (
    normalized_twice,
    not_log_probabilities,
)
from gradgate.checker.recording.graph._targets import (
    after_reward,
    cancelled,
    compared_with_own_averages,
    pulled_teacher,
    repeated_errors,
    row,
    sides_are_equal,
    sums_with_constants,
    trained_target,
)

__all__ = [
    "after_reward",
    "are_apart",
    "broadcast_at",
    "cancelled",
    "compared_views",
    "compared_with_own_averages",
    "detached_in_one_term",
    "driven",
    "is_half",
    "node_shape",
    "normalized_twice",
    "not_log_probabilities",
    "pulled_teacher",
    "repeated_errors",
    "row",
    "sides_are_equal",
    "sums_with_constants",
    "trained_target",
]
