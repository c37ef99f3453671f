"""Gates that stop, scale, reverse, mask or clip a gradient; frozen modules and rows; reports of gradient flow."""

from gradgate.gates._expect_flow import expect_flow
from gradgate.gates._flow import Flow, Reach, flow
from gradgate.gates._frozen import Frozen, frozen
from gradgate.gates._gates import (
    clip_gradient,
    mask_gradient,
    reverse_gradient,
    scale_gradient,
    stop_gradient,
)
from gradgate.gates._param_groups import param_groups
from gradgate.gates._scaled import ScaledModules, scaled
from gradgate.gates._trace import Stop
from gradgate.gates._train_rows import TrainedRows, train_rows

__all__ = [
    "Flow",
    "Frozen",
    "Reach",
    "ScaledModules",
    "Stop",
    "TrainedRows",
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
    "train_rows",
]
