"""Run a user's loop, and compare the gradient that its optimizer receives with that of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from gradgate.accumulation._settings import Model, Models, owned_parameters
from gradgate.errors import GraphError, ShapeError
from gradgate.forward_state import ForwardState, Snapshot
from gradgate.testing._compare import compare, real_vector, scales

_DRAWS = 6  # rounding has few possible values, so two draws are often equal
# How much a gradient may differ if sums are added in another order, relative to the parameter's largest gradient:
# about a thousand times the dtype's precision, because deep models add long sums.
_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@dataclass(frozen=True, repr=False)
class Verdict:
    """How a loop's update compares with that of the whole batch.

    Attributes:
        error: the largest error of any parameter, ``max |difference| / max |whole-batch gradient|``. If a
            parameter's gradient is only rounding error, the divisor is the largest gradient of all parameters.
        factor: the best fit of ``received = factor * whole-batch gradient``.
        residual: the error that remains after that fit.
        tolerance: the error that rounding explains.
        steps: optimizer steps that the loop made.
        parameter: the parameter with the largest error.
    """

    error: float
    factor: float
    residual: float
    tolerance: float
    steps: int
    parameter: str = ""

    @property
    def exact(self) -> bool:
        """Whether the loop made one step, with the gradient of the whole batch."""
        return self.steps == 1 and self.error <= self.tolerance

    def __repr__(self) -> str:
        exact = "exact" if self.exact else "not exact"
        return f"Verdict({exact}: error {self.error:.1e}, {self.tolerance:.0e} allowed, steps={self.steps})"

    def __str__(self) -> str:
        if self.exact:
            return (
                f"exact: within {self.error:.1e} of the whole batch's gradient ({self.tolerance:.0e} allowed)"
            )
        if self.steps == 0:
            return (
                "the loop never stepped the optimizer, so there is no gradient to compare. Step once, after the "
                "last micro-batch; if a wrapper steps an inner optimizer, pass that one."
            )
        if self.error <= self.tolerance:
            return f"the first step is exact, but the loop stepped {self.steps} times. Step once per window."
        if self.residual <= self.tolerance * max(1.0, abs(self.factor)):
            size = f"{self.factor:.6g} times the whole batch's"
        else:
            size = (
                f"off by {self.error:.2g} times the whole batch's gradient at {self.parameter}, and not a multiple "
                f"of it (closest factor: {self.factor:.3g})"
            )
        more = f". The loop stepped {self.steps} times; this is its first step" if self.steps > 1 else ""
        return f"the gradient that the optimizer received is {size}{more}."


def assert_exact_update(
    loop: Callable[[Any], object],
    batch: Any,
    *,
    optimizer: Optimizer,
    loss_fn: Callable[[Any], Tensor | tuple[Tensor, Any]],
    model: Model,
    rtol: float | None = None,
) -> Verdict:
    """Assert that a training loop makes the update of the whole batch.

    Runs ``loop(batch)``, records the gradient that the optimizer receives at its first step, and compares it with
    the gradient of ``loss_fn(batch)``. It restores parameters, optimizer state, module buffers, ``.grad`` and
    torch's random state afterwards, so a test can call this in the middle of training.

    Args:
        loop: your training loop; takes the batch, splits it, and makes one optimizer step.
        batch: the input of ``loop`` and ``loss_fn``. A small batch is enough; unequal micro-batches and a
            short last one reveal most mistakes.
        optimizer: the optimizer that the loop steps.
        loss_fn: takes the whole batch and returns its mean loss, a scalar whose gradient the update should use. It
            may return ``(loss, count)``, as for ``Accumulator.step``. If there is a difference, it is called again,
            to find gradients that are only rounding error.
        model: the module, or several, that the loop trains: its buffers are restored, and messages name its parts.
        rtol: allowed ``max |difference| / max |gradient|`` of each parameter. By default the error that
            rounding explains: 1e-10 in float64, 1e-4 in float32, 3e-2 in bfloat16, 1e-2 in float16; with several
            dtypes, among parameters or in autocast, the widest of these.

    Returns:
        The :class:`Verdict`, for printing.

    Raises:
        AssertionError: the update differs; the message gives the factor, or the parameter that differs most.
        GraphError: ``loss_fn`` reaches none of the optimizer's parameters.
        ShapeError: ``loss_fn`` returns no scalar.

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
        >>> assert_exact_update(
        ...     loop, batch, optimizer=optimizer, model=model, loss_fn=lambda x: model(x).pow(2).mean()
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
    loss_fn: Callable[[Any], Tensor | tuple[Tensor, Any]],
    model: Model,
    rtol: float | None = None,
) -> Verdict:
    """Return the verdict of :func:`assert_exact_update` without raising."""
    parameters = [parameter for parameter in owned_parameters([optimizer]) if parameter.requires_grad]
    models = Models(model, "compare_update")
    gradients = [parameter.grad for parameter in parameters]
    kept_gradients = Snapshot(gradients)
    snapshot = Snapshot.before_step(parameters, [optimizer])
    forward_state = ForwardState(models, owned_parameters([optimizer]))

    def whole_batch() -> list[Tensor]:
        forward_state.restore()
        return [real_vector(gradient) for gradient in _whole_batch(loss_fn(batch), parameters)]

    try:
        with _autocast_types(parameters) as types:
            with _recording(optimizer, parameters) as record:
                loop(batch)
            snapshot.restore()
            expected = whole_batch()
        kinds = {parameter.dtype.to_real() for parameter in parameters} | types
        widest = max(kinds, key=lambda kind: _TOLERANCES.get(kind, 1e-4))
        tolerance = _TOLERANCES.get(widest, 1e-4) if rtol is None else rtol
        received = [
            real_vector(gradient) for gradient in record.gradients or map(torch.zeros_like, parameters)
        ]
        error, factor, residual, worst = compare(received, expected, scales(expected))
        if record.steps and not error <= tolerance:
            nearby = [_moved(whole_batch, parameters, snapshot, widest, draw) for draw in range(_DRAWS)]
            error, factor, residual, worst = compare(received, expected, scales(expected, nearby))
    finally:
        for state in (snapshot, forward_state, kept_gradients):
            state.restore()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    name = models.name(parameters[worst], [optimizer])
    return Verdict(error, factor, residual, tolerance, record.steps, name)


@dataclass
class _Record:
    """The number of steps, and ``.grad`` at the first one, with zeros for None."""

    steps: int = 0
    gradients: list[Tensor] | None = None


@contextmanager
def _recording(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Iterator[_Record]:
    """Record the optimizer's steps inside the block, through torch's own hooks."""
    record = _Record()

    def note_step() -> None:
        record.steps += 1
        if record.steps > 1:
            return
        # Under a GradScaler, a fused optimizer divides by the scale inside its step.
        scale = getattr(optimizer, "grad_scale", None)
        divisor = 1.0 if scale is None else scale
        record.gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.detach() / divisor for p in parameters
        ]

    depth = 0  # a subclass may call the step of its base class, which runs the same hooks

    def after_step(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def before_step(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal depth
        depth += 1
        if depth > 1:
            return None
        # In args, the optimizer itself comes first.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            note_step()
            return None

        def noted_closure() -> Any:  # a step may run the last backward pass itself, as in Lightning
            loss = closure()
            note_step()
            return loss

        return args[:1], {**kwargs, "closure": noted_closure}

    handles = [
        optimizer.register_step_pre_hook(before_step),
        optimizer.register_step_post_hook(after_step),
    ]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _autocast_types(parameters: Sequence[Tensor]) -> Iterator[set[torch.dtype]]:
    """Collect the autocast dtypes in which modules run inside the block."""
    devices = {parameter.device.type for parameter in parameters}
    seen: set[torch.dtype] = set()

    def note(module: nn.Module, args: Any) -> None:
        seen.update(torch.get_autocast_dtype(kind) for kind in devices if torch.is_autocast_enabled(kind))

    handle = register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def _moved(
    whole_batch: Callable[[], list[Tensor]],
    parameters: list[Tensor],
    snapshot: Snapshot,
    kind: torch.dtype,
    draw: int,
) -> list[Tensor]:
    """Return the whole batch's gradient at parameters whose entries are moved up or down by two roundings."""
    step = 2 * torch.finfo(kind).eps
    torch.manual_seed(draw)  # the forward state, restored before every pass, includes the random state
    with torch.no_grad():
        for parameter in parameters:
            signs = torch.rand_like(parameter, dtype=parameter.dtype.to_real()) - 0.5
            parameter.mul_(1 + step * signs.sign())
    try:
        return whole_batch()
    finally:
        snapshot.restore()


def _whole_batch(returned: Any, parameters: list[Tensor]) -> list[Tensor]:
    loss = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        given = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ShapeError(
            f"assert_exact_update: loss_fn(batch) returned {given}, but it must return a scalar. Return the "
            "mean loss of the batch, or (loss, count)."
        )
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else ()
    if all(gradient is None for gradient in gradients):
        raise GraphError(
            "assert_exact_update: loss_fn(batch) reaches none of the optimizer's parameters, so there is nothing "
            "to compare with. Return the mean loss of the batch, computed with the model that the loop trains."
        )
    pairs = zip(parameters, gradients, strict=True)
    return [torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs]
