"""Walks the graph of a loss, decodes its nodes, and counts their FLOPs."""

from gradgate.autograd_graph._broadcasts import broadcast_at, node_shape
from gradgate.autograd_graph._distances import compared_views, detached_in_one_term, unpassed_codes
from gradgate.autograd_graph._driven import driven
from gradgate.autograd_graph._flops import flops_of
from gradgate.autograd_graph._hidden import REENTRANT_CHECKPOINT, hidden_parameter
from gradgate.autograd_graph._items import check_items, compared_items, finds_each_item
from gradgate.autograd_graph._loss_inputs import (
    labels_are_predictions,
    normalized_twice,
    not_log_probabilities,
)
from gradgate.autograd_graph._losses import (
    WEIGHT_ROUNDING,
    Input,
    NotUnderstoodError,
    SamplesMixedError,
    divisor_of,
    inputs_of,
    reduced_shape,
    reduction_of,
    shape_of,
    targets_of,
    without_smoothing,
)
from gradgate.autograd_graph._mixing import Mixing, loss_over_items, mixing
from gradgate.autograd_graph._nodes import (
    DDP_SINK,
    ELEMENTWISE,
    ERRORS,
    LEAF,
    LOSSES,
    RESHAPES,
    SUMS,
    inputs,
    is_half,
    named,
    only_input,
    through,
)
from gradgate.autograd_graph._nonlinear import functions_of_means
from gradgate.autograd_graph._targets import (
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
from gradgate.autograd_graph._tokens import losses_of_hidden_padding, losses_of_padding, wrongly_shifted
from gradgate.autograd_graph._walk import Graph, are_apart, reachable, roots_of, walk

__all__ = [
    "DDP_SINK",
    "ELEMENTWISE",
    "ERRORS",
    "LEAF",
    "LOSSES",
    "REENTRANT_CHECKPOINT",
    "RESHAPES",
    "SUMS",
    "WEIGHT_ROUNDING",
    "Graph",
    "Input",
    "Mixing",
    "NotUnderstoodError",
    "SamplesMixedError",
    "after_reward",
    "are_apart",
    "broadcast_at",
    "cancelled",
    "check_items",
    "compared_items",
    "compared_views",
    "compared_with_own_averages",
    "detached_in_one_term",
    "divisor_of",
    "driven",
    "finds_each_item",
    "flops_of",
    "functions_of_means",
    "hidden_parameter",
    "inputs",
    "inputs_of",
    "is_half",
    "labels_are_predictions",
    "loss_over_items",
    "losses_of_hidden_padding",
    "losses_of_padding",
    "mixing",
    "named",
    "node_shape",
    "normalized_twice",
    "not_log_probabilities",
    "only_input",
    "pulled_teacher",
    "reachable",
    "reduced_shape",
    "reduction_of",
    "repeated_errors",
    "roots_of",
    "row",
    "shape_of",
    "sides_are_equal",
    "sums_with_constants",
    "targets_of",
    "through",
    "trained_target",
    "unpassed_codes",
    "walk",
    "without_smoothing",
    "wrongly_shifted",
]
