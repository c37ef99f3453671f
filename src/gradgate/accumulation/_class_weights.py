"""Compares the weights of classes in the losses of a window whose counts were left out."""

from __future__ import annotations

import torch
from torch import Tensor

from gradgate.accumulation._counts import UPDATE, Caller, reduced
from gradgate.autograd_graph import WEIGHT_ROUNDING, loss_over_items
from gradgate.errors import CountError
from gradgate.torch_compat import tensor_version

_COUNTED = {"weight": "weight[y].sum()", "pos_weight": "y.numel()"}


class ClassWeights:
    """Compares the weights in the losses of a window whose counts were left out."""

    def __init__(self, caller: Caller = UPDATE) -> None:
        self._caller = caller
        # The first weight in this window, by loss and by the weight's name, with its version and a copy.
        self._first: dict[tuple[str, str], tuple[Tensor, int, Tensor]] = {}

    def check(self, name: str, loss: Tensor, later: bool) -> None:
        """Raise CountError if a loss has other weights than the window's first one.

        The same weights may be new tensors, as with ``weight.to(device)``. Comparing those synchronizes.
        """
        node = loss_over_items(reduced(loss))
        for kind in _COUNTED:
            weight: Tensor | None = getattr(node, f"_saved_{kind}", None)
            if weight is None or weight.is_meta:
                continue
            version = tensor_version.use(weight)
            if not later or (name, kind) not in self._first:
                self._first[name, kind] = weight, version, weight.detach().clone()
                continue
            # The kept tensor holds its memory, so its address is not reused.
            first, first_version, values = self._first[name, kind]
            if weight.data_ptr() == first.data_ptr() and version == first_version:
                continue
            same = weight.shape == values.shape
            if not (same and torch.allclose(weight, values, rtol=WEIGHT_ROUNDING, atol=0)):
                raise CountError(
                    f"{self._caller.name}: count is missing, and this loss has {kind}=[{_row(weight)}], while an "
                    f"earlier loss in this window had {kind}=[{_row(values)}]. Weights computed from each "
                    "micro-batch's labels do not give the loss of the whole batch. Compute them once, from the "
                    "labels of the whole window or data set. If each micro-batch should have its own weights, pass "
                    "the count: "
                    f"count={_COUNTED[kind]}."
                )


def _row(weight: Tensor) -> str:
    values = [f"{value:.4g}" for value in weight.flatten()[:3].tolist()]
    return ", ".join([*values, "..."] if weight.numel() > 3 else values)
