"""Run a user's loop over a batch, look at what its optimizer received, compare with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradgate.accumulation._models import Model, Models
from gradgate.accumulation._parameters import owned_parameters
from gradgate.accumulation._snapshot import Snapshot
from gradgate.accumulation._surroundings import Surroundings
from gradgate.errors import GraphError
from gradgate.testing._causes import likely_cause
from gradgate.testing._record import Record, recording

# Rounding that two orders of the same sums may differ by, in units of the largest gradient: some thousand
# times the type's own precision, for deep models add long sums.
_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Verdict:
    """How a loop's update compares with that of the whole batch.

    Attributes:
        error: ``max |difference| / max |whole-batch gradient|`` over all parameters.
        factor: the number that, times the whole-batch gradient, comes closest to what was received.
        residual: what is left after that factor, in the unit of ``error``.
        tolerance: the error that rounding explains.
        steps: optimizer steps that the loop made.
        cause: the usual cause of such a difference, in a sentence; empty if the update is exact.
    """

    error: float
    factor: float
    residual: float
    tolerance: float
    steps: int
    cause: str

    @property
    def exact(self) -> bool:
        """Whether the loop made one step, with the gradient of the whole batch."""
        return self.steps == 1 and self.error <= self.tolerance

    def __str__(self) -> str:
        if self.exact:
            return (
                f"exact: within {self.error:.1e} of the whole batch's gradient ({self.tolerance:.0e} allowed)"
            )
        if self.steps == 0:
            return f"the optimizer received no gradient: {self.cause}"
        if self.error <= self.tolerance:
            return f"the first step is exact, but {self.cause}"
        if self.residual <= self.tolerance * max(1.0, abs(self.factor)):
            size = f"{self.factor:.6g} times the whole batch's"
        else:
            size = (
                f"off by {self.error:.2g} of the whole batch's largest, by no one factor (nearest: "
                f"{self.factor:.3g})"
            )
        return f"the gradient that the optimizer received is {size}: {self.cause}"


def assert_exact_update(
    loop: Callable[[Any], object],
    batch: Any,
    *,
    optimizer: Optimizer,
    loss_fn: Callable[[Any], Tensor],
    model: Model | None = None,
    rtol: float | None = None,
) -> Verdict:
    """Assert that a training loop makes the update of the whole batch.

    Runs ``loop(batch)``, catches the gradient that the optimizer receives at its first step, and compares
    it with the gradient of ``loss_fn(batch)``. Parameters, optimizer state, module buffers, ``.grad`` and
    torch's random state are put back afterwards, so a test may call this in the middle of a training.

    Args:
        loop: your loop: takes the batch, cuts it as it does, ends in one optimizer step.
        batch: whatever ``loop`` and ``loss_fn`` take. Small is enough; unequal micro-batches and a short
            last one find most mistakes.
        optimizer: the optimizer that the loop steps.
        loss_fn: the mean loss of the whole batch at once, a scalar: what the update should be that of.
        model: the module, or several, that the loop trains: buffers are put back, and messages name its parts.
        rtol: allowed ``max |difference| / max |gradient|``; by default what rounding explains: 1e-10 in
            float64, 1e-4 in float32, 3e-2 in bfloat16, 1e-2 in float16.

    Returns:
        the :class:`Verdict`, for printing.

    Raises:
        AssertionError: the update differs; the message gives the factor and its usual cause.
        GraphError: ``loss_fn`` reaches none of the optimizer's parameters.

    Example:
        >>> model = torch.nn.Linear(2, 1).double()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batch = torch.arange(10, dtype=torch.float64).reshape(5, 2)
        >>> def loop(batch):
        ...     for part in batch.split(2):  # 2, 2 and 1 samples, each a third
        ...         (model(part).pow(2).mean() / 3).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> from gradgate.testing import assert_exact_update
        >>> assert_exact_update(loop, batch, optimizer=optimizer, loss_fn=lambda x: model(x).pow(2).mean()
        ... )  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        AssertionError: assert_exact_update: the gradient that the optimizer received is off by ...
    """
    verdict = compare_update(loop, batch, optimizer=optimizer, loss_fn=loss_fn, model=model, rtol=rtol)
    if not verdict.exact:
        raise AssertionError(f"assert_exact_update: {verdict}")
    return verdict


def compare_update(
    loop: Callable[[Any], object],
    batch: Any,
    *,
    optimizer: Optimizer,
    loss_fn: Callable[[Any], Tensor],
    model: Model | None = None,
    rtol: float | None = None,
) -> Verdict:
    """Do what :func:`assert_exact_update` does, and return the verdict whatever it is."""
    parameters = [parameter for parameter in owned_parameters([optimizer]) if parameter.requires_grad]
    models = Models(model, "compare_update")
    snapshot, surroundings = (
        Snapshot(parameters, [optimizer]),
        Surroundings(models, owned_parameters([optimizer])),
    )
    gradients = [parameter.grad for parameter in parameters]
    copies = [None if gradient is None else gradient.clone() for gradient in gradients]
    try:
        with recording(optimizer, parameters) as record:
            loop(batch)
        snapshot.restore()
        surroundings.restore()
        whole = _whole_batch(loss_fn(batch), parameters)
    finally:
        snapshot.restore()
        surroundings.restore()
        for parameter, gradient, copied in zip(parameters, gradients, copies, strict=True):
            # Written to only where needed: an accumulator knows the zeros that it left by their version.
            if gradient is not None and copied is not None and not torch.equal(gradient, copied):
                gradient.copy_(copied)
            parameter.grad = gradient
    tolerance = max(_TOLERANCES.get(p.dtype, 1e-4) for p in parameters) if rtol is None else rtol
    return _verdict(record, whole, tolerance, models)


def _whole_batch(loss: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else ()
    if all(gradient is None for gradient in gradients):
        raise GraphError(
            "assert_exact_update: loss_fn(batch) reaches none of the optimizer's parameters, so there is nothing "
            "to compare with. Return the mean loss of the batch, computed with the model that the loop trains."
        )
    pairs = zip(parameters, gradients, strict=True)
    return [torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs]


def _verdict(record: Record, whole: list[Tensor], tolerance: float, models: Models) -> Verdict:
    expected = _flat(whole)
    received = _flat(record.gradients) if record.gradients is not None else torch.zeros_like(expected)
    factor = float(received @ expected / (expected @ expected)) if expected.any() else 0.0
    largest = float(expected.abs().max()) or 1.0
    error = float((received - expected).abs().max()) / largest
    residual = float((received - factor * expected).abs().max()) / largest
    verdict = Verdict(error, factor, residual, tolerance, record.steps, "")
    if verdict.exact:
        return verdict
    cause = likely_cause(record, error, factor, residual, tolerance, models)
    return Verdict(error, factor, residual, tolerance, record.steps, cause)


def _flat(tensors: list[Tensor]) -> Tensor:
    """All numbers in one vector, in float64 and on the CPU, so that comparing adds no rounding."""
    dense = (tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors)
    return torch.cat([tensor.detach().cpu().double().reshape(-1) for tensor in dense])
