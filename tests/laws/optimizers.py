"""The optimizers that the laws are run with, each in every variant that torch has for it."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

KINDS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD": (SGD, {}),
    "SGD with momentum": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (Adam, {"weight_decay": 0.1}),
    "AdamW": (AdamW, {"weight_decay": 0.1}),
    "RMSprop": (RMSprop, {"momentum": 0.9, "weight_decay": 0.1}),
    "Adagrad": (Adagrad, {"weight_decay": 0.1}),
}
VARIANTS: dict[str, dict[str, bool]] = {
    "default": {},  # on a CPU one parameter after the other
    "foreach": {"foreach": True},
    "fused": {"fused": True},  # RMSprop has none
}

Make = Callable[[Iterable[Tensor] | list[dict[str, Any]]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    f"{name}, {variant}": partial(kind, lr=0.01, **options, **chosen)
    for name, (kind, options) in KINDS.items()
    for variant, chosen in VARIANTS.items()
    if chosen.keys() <= inspect.signature(kind).parameters.keys()
}
