"""Walks the graph of a loss and decodes its nodes."""

from gradgate.autograd_graph import _nodes as ops
from gradgate.autograd_graph._hidden import hidden_parameter
from gradgate.autograd_graph._inputs import edges, inputs, leaf_at, only_input, through
from gradgate.autograd_graph._items import check_items, compared_items, finds_each_item
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
    signed,
    targets_of,
    without_smoothing,
)
from gradgate.autograd_graph._mixing import Mixing, loss_over_items, mixing
from gradgate.autograd_graph._nonlinear import functions_of_means
from gradgate.autograd_graph._walk import Graph, reachable, roots_of, walk

__all__ = [
    "WEIGHT_ROUNDING",
    "Graph",
    "Input",
    "Mixing",
    "NotUnderstoodError",
    "SamplesMixedError",
    "check_items",
    "compared_items",
    "divisor_of",
    "edges",
    "finds_each_item",
    "functions_of_means",
    "hidden_parameter",
    "inputs",
    "inputs_of",
    "leaf_at",
    "loss_over_items",
    "mixing",
    "only_input",
    "ops",
    "reachable",
    "reduced_shape",
    "reduction_of",
    "roots_of",
    "shape_of",
    "signed",
    "targets_of",
    "through",
    "walk",
    "without_smoothing",
]
