"""The usual causes of a wrong gradient, inferred from its factor and from the loop's calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from gradgate.accumulation._settings import Models
from gradgate.testing._compare import Comparison
from gradgate.testing._record import Record
from gradgate.torch_compat import batch_norm_classes

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def likely_cause(
    record: Record,
    found: Comparison,
    tolerance: float,
    names: Sequence[str],
    autocast: Iterable[torch.dtype],
    models: Models,
) -> str:
    """Return the likely cause of a wrong update, and its fix."""
    causes = {  # each with whether it applies
        "the loop never stepped the optimizer, but its parameters changed: another optimizer stepped them, such as "
        "the inner optimizer of a wrapper. Pass that optimizer.": record.steps == 0 and record.moved,
        "the loop never stepped the optimizer. Step after the last micro-batch, even in a short window.": (
            record.steps == 0
        ),
        "gradients from before the loop were still in .grad. Clear them before the first backward: "
        "optimizer.zero_grad().": record.stale,
        f"the optimizer stepped after {record.passes} of {record.passes + record.passes_after} backward passes, so "
        "the rest missed this step. Step when the window is complete: (i + 1) % N == 0, or at the end of the "
        "loader.": record.passes_after > 0,
        f"the loop stepped {record.steps} times. Step once per window.": (
            record.steps > 1 and found.error <= tolerance
        ),
        "parameters changed between the loop's backward passes, before the step (as in SAM), so the loop's "
        "gradient belongs to other parameter values than loss_fn's. Compare without that change, such as rho=0.": (
            record.moved_before
        ),
        "it is not finite. Check the losses of the loop and of loss_fn.": not math.isfinite(found.error),
        f"{_listed(found.missing, names)} received no gradient, though loss_fn gives one. Look for a detach, a "
        "frozen part or a loss that the loop leaves out.": bool(found.missing and found.factor),
        f"{_listed(found.surplus, names)} received a gradient, though loss_fn gives none. The loop has a loss "
        "that loss_fn leaves out.": bool(found.surplus),
    }
    for cause, applies in causes.items():
        if applies:
            return cause
    if found.residual <= tolerance * max(1.0, abs(found.factor)):
        return _of_factor(found.factor, record.passes, tolerance)
    cause = _of_direction(record.passes, models)
    types = ", ".join(str(dtype).removeprefix("torch.") for dtype in autocast)
    return f"{cause} The loop uses autocast ({types}): if in doubt, compare without it." if types else cause


def _listed(indices: Sequence[int], names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[index] for index in indices[:most])
    return f"{shown} and {len(indices) - most} more" if len(indices) > most else shown


def _of_factor(factor: float, passes: int, tolerance: float) -> str:
    """Return the cause of a gradient that is a multiple of the right one."""
    if abs(factor) < 1e-12:
        return "it is zero. Gradients were cleared between backward and step, or the loss was detached."
    if factor < 0:
        return "its sign is reversed. Minimize the loss that loss_fn returns, or reverse its sign there."

    def near(value: float) -> bool:
        return math.isclose(factor, value, rel_tol=tolerance)

    def whole(value: float) -> bool:
        # Every number above this limit is within the tolerance of an integer.
        return 1 < round(value) < 0.02 / tolerance and math.isclose(value, round(value), rel_tol=tolerance)

    causes = {  # each with whether it applies
        f"the means of {passes} micro-batches were added and not divided. Weight each by its share of the items: "
        "loss * count / total_count.": passes > 1 and near(passes),
        f"it was divided twice by the {passes} micro-batches (loss / {passes} on a loss that is already a mean "
        "over the whole batch, or in a trainer that also divides). Divide once.": passes > 1
        and near(1 / passes),
        f"it still contains the loss scale {round(factor)}. Call scaler.unscale_(optimizer) before you clip or "
        "read gradients, and scaler.step(optimizer) in place of optimizer.step().": (
            factor >= 256 and near(2 ** round(math.log2(factor)))
        ),
        f"a loss was summed over {round(factor)} items where loss_fn takes the mean, or the same loss was "
        "back-propagated several times. Divide once by the number of items.": whole(factor),
        f"it was divided by {round(1 / factor)} once too often (a mean of means, or an average over ranks after "
        "another division). Divide once by the number of items.": whole(1 / factor),
        "it was clipped (compare without clipping), or a short window was divided by the full number of "
        "micro-batches. Divide by the actual number of items.": factor < 1,
        "it was multiplied by a constant factor. Look for a loss weight that loss_fn does not have.": True,
    }
    return next(cause for cause, applies in causes.items() if applies)


def _of_direction(passes: int, models: Models) -> str:
    """Return the cause of a gradient that is not a multiple of the right one."""
    training = [module for module in models if module.training]
    for module in training:
        if isinstance(module, batch_norm_classes()):
            return (
                f"{models.name(module)} is in training mode and normalizes each micro-batch by itself, so no "
                "split is exact. Compare in eval mode, or use GroupNorm or LayerNorm."
            )
    for module in training:
        if isinstance(module, _DROPOUTS) and module.p:
            return f"{models.name(module)} drops different entries in each run. Compare in eval mode, or with p=0."
    if passes > 1:
        return (
            f"{passes} micro-batches with unequal numbers of items (samples, or valid tokens) had equal weight, or "
            "a micro-batch was lost. Weight each by its items: loss * count / total_count, or "
            "update.backward(loss, count=count)."
        )
    return (
        "the loop and loss_fn compute different losses, or the loop saw only part of the batch. Use the same loss "
        "in both, on the same batch."
    )
