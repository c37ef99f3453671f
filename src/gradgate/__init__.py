"""Gradient accumulation that is exact, and a checker that finds what is wrong with your training loop.

The names below are in the order of a training step. Each is imported on first use, together with torch. The command
line therefore starts quickly, and does not import torch before the watched script does.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from gradgate.accumulation import (
        Accumulator,
        Update,
        decay,
        windows,
    )
    from gradgate.batch_size import NoiseScale, scale_lr, warmup
    from gradgate.checker import watch
    from gradgate.gates import (
        clip_gradient,
        expect_flow,
        flow,
        frozen,
        mask_gradient,
        param_groups,
        reverse_gradient,
        scale_gradient,
        scaled,
        stop_gradient,
        train_rows,
    )
    from gradgate.planning import Plan, plan
    from gradgate.tally import Tally

__version__ = "0.2.0"

__all__ = [  # noqa: RUF022
    "param_groups",
    "scale_lr",
    "warmup",
    "NoiseScale",
    "Accumulator",
    "plan",
    "Plan",
    "windows",
    "Update",
    "Tally",
    "decay",
    "stop_gradient",
    "scale_gradient",
    "reverse_gradient",
    "mask_gradient",
    "clip_gradient",
    "frozen",
    "scaled",
    "train_rows",
    "flow",
    "expect_flow",
    "watch",
]

_HOMES = {  # all others are in accumulation
    "Tally": "tally",
    "watch": "checker",
    **dict.fromkeys(("scale_lr", "warmup", "NoiseScale"), "batch_size"),
    **dict.fromkeys(("plan", "Plan"), "planning"),
    **dict.fromkeys(
        (
            *("stop_gradient", "scale_gradient", "reverse_gradient", "mask_gradient", "clip_gradient"),
            *("frozen", "scaled", "train_rows", "param_groups", "flow", "expect_flow"),
        ),
        "gates",
    ),
}
_PACKAGES = (
    "accumulation",
    "errors",
    "gates",
    "losses",
    "planning",
    "tally",
    "testing",
)  # those with names for users


def __getattr__(name: str) -> _typing.Any:
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"gradgate.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'gradgate' has no attribute {name!r}")
    value = getattr(import_module(f"gradgate.{_HOMES.get(name, 'accumulation')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
