"""Gates: where gradient is stopped, scaled, reversed, masked or clipped; and modules that stay still."""

from gradgate.flow._entries import TrainedOnly, train_mask, train_rows
from gradgate.flow._expect import expect_flow
from gradgate.flow._flow import Flow, Reach, Stop, flow
from gradgate.flow._frozen import Frozen, frozen
from gradgate.flow._gates import (
    clip_gradient,
    mask_gradient,
    reverse_gradient,
    scale_gradient,
    stop_gradient,
)
from gradgate.flow._param_groups import param_groups
from gradgate.flow._scaled import Scaled, scaled

__all__ = [
    "Flow",
    "Frozen",
    "Reach",
    "Scaled",
    "Stop",
    "TrainedOnly",
    "clip_gradient",
    "expect_flow",
    "flow",
    "frozen",
    "mask_gradient",
    "param_groups",
    "reverse_gradient",
    "scale_gradient",
    "scaled",
    "stop_gradient",
    "train_mask",
    "train_rows",
]
