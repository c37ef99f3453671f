"""Every way that gradgate offers to make one update of a window; and ways that are known to be wrong."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

import gradgate as gg
from gradgate.batch_layout import NOT_GIVEN, FieldDim, Path
from gradgate.errors import CountError, EstimateWarning
from gradgate.pytree import children
from tests.laws.fuzz.loop import Loop, given
from tests.laws.fuzz.scenario import Scenario
from tests.laws.fuzz.trainer import Rows, joined

Window = Sequence[Rows]
Way = Callable[[Loop, Window], Any]


class StopError(Exception):
    """A run that is stopped."""


def _update(loop: Loop, window: Iterable[Rows]) -> Any:
    with loop.accumulator.update() as update:
        for rows in update.micro_batches(window):
            loop.add_losses(update, rows)
    return update


def _windows(loop: Loop, window: Window) -> Any:
    drawn = list(gg.windows(iter(window), size=max(len(window), 1)))
    return _update(loop, drawn[0] if drawn else [])


def _resumed(loop: Loop, window: Window) -> Any:
    """Stop after the middle micro-batch, and go on in another process."""
    with contextlib.suppress(StopError), loop.accumulator.update() as update:
        for number, rows in enumerate(update.micro_batches(window), 1):
            loop.add_losses(update, rows)
            if number == (len(window) + 1) // 2:
                file = loop.save()
                raise StopError
    loop.load(file)
    return _update(loop, window)


def _step(loop: Loop, window: Window, most: tuple[int, str] | None = None, plan: Any = None) -> Any:
    loop.most = most
    reduction: Any = loop.losses[0].reduction
    batch = loop.batch(joined(window))
    options: dict[str, Any] = {"batch_dim": not_shared(batch)} if plan is None else {"plan": plan}
    return loop.accumulator.step(loop.loss_fn, batch, reduction=reduction, **options)


def _step_window(loop: Loop, window: Window, most: tuple[int, str] | None = None) -> Any:
    loop.most = most
    reduction: Any = loop.losses[0].reduction
    batches = [loop.batch(rows) for rows in window]
    batch_dim = not_shared(batches[0]) if batches else NOT_GIVEN
    return loop.accumulator.step_window(loop.loss_fn, batches, reduction=reduction, batch_dim=batch_dim)


def not_shared(batch: Any, path: Path = ()) -> dict[Path, FieldDim]:
    """Return the answer to the question which weights and masks all samples share: none."""
    if isinstance(batch, Tensor):
        return {path: 0} if batch.is_floating_point() or batch.dtype == torch.bool else {}
    inside = children(batch) or []
    return {place: dim for key, item in inside for place, dim in not_shared(item, (*path, key)).items()}


def trim_is_asked_for(scenario: Scenario) -> bool:
    """Return whether a plan asks which fields may be trimmed: of left padding, and images as wide as texts."""
    return scenario.left_padding or scenario.layout == "images"


def planned(loop: Loop, window: Window) -> Any:
    """Plan a batch so that about three samples fit; how sure the plan is of that is no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EstimateWarning)
        return _planned(loop, window)


def _planned(loop: Loop, window: Window) -> Any:
    batch = loop.batch(joined(window))
    lengths = (lambda b: loop.layout.unpack(b)["mask"]) if loop.pool.words else None
    options: dict[str, Any] = {"lengths": lengths, "batch_dim": not_shared(batch)}
    if trim_is_asked_for(loop.scenario) and loop.scenario.seed % 2:
        options["trim"] = ()
    plan = gg.plan(loop.loss_fn, batch, budget_bytes="1GiB", **options)
    longest = max(part.length for part in plan.parts)
    budget = plan.resident.total_bytes + 2 * plan.peak_bytes(3, longest)
    return gg.plan(loop.loss_fn, batch, budget_bytes=budget, **options)


def _plan_loop(loop: Loop, window: Window) -> Any:
    plan = planned(loop, window)
    with loop.accumulator.update() as update:
        for micro in update.micro_batches(plan.split(loop.batch(joined(window)))):
            outcome = loop.loss_fn(micro.data)
            loss, count = outcome if isinstance(outcome, tuple) else (outcome, None)
            update.backward(loss, count=count, reduction=loop.losses[0].reduction)
    return update


WAYS: dict[str, Way] = {
    "loop": _update,
    "generator": lambda loop, window: _update(loop, (rows for rows in window)),
    "windows": _windows,
    "resumed": _resumed,
    "step": _step,
    "step_window": _step_window,
    "step, no memory in forward": lambda loop, window: _step(loop, window, (2, "forward")),
    "step, no memory in backward": lambda loop, window: _step(loop, window, (2, "backward")),
    "step_window, no memory in forward": lambda loop, window: _step_window(loop, window, (2, "forward")),
    "step_window, no memory in backward": lambda loop, window: _step_window(loop, window, (2, "backward")),
    "plan": lambda loop, window: _step(loop, window, plan=planned(loop, window)),
    "plan, no memory": lambda loop, window: _step(loop, window, (2, "backward"), plan=planned(loop, window)),
    "plan, loop": _plan_loop,
}
IN_LOOPS = ("loop", "generator", "windows", "resumed")


# -- known to be wrong ------------------------------------------------------------------------------


def _by_hand(loop: Loop, window: Window, share: Callable[[int], float], *, clear: bool = True) -> None:
    for rows in window:
        fields = loop.fields_of(rows)
        loss = loop.losses[0].value(loop.logits(fields), fields, loop.net)
        (loss * share(len(rows))).backward()
    for optimizer in loop.optimizers:
        optimizer.step()
        if clear:
            optimizer.zero_grad()


def _ranks_alike(loop: Loop, window: Window) -> Any:
    """The mean over ranks of each rank's mean."""
    mine = sum(given(loop.losses[0], loop.fields_of(rows)) for rows in window)
    with loop.accumulator.update() as update:
        for rows in update.micro_batches(window):
            fields = loop.fields_of(rows)
            loss = loop.losses[0].value(loop.logits(fields), fields, loop.net)
            update.backward(loss, count=given(loop.losses[0], fields) / max(mine, 1))


def _gathered(loop: Loop, window: Window) -> Any:
    """What ``fully_shard`` left gathered is taken for somebody else's, and its sums are dropped."""
    dropped = [p for name, p in loop.net.named_parameters() if "head" in name]
    values = [p.detach().clone() for p in dropped]
    _update(loop, window)
    with torch.no_grad():
        for parameter, value in zip(dropped, values, strict=True):
            parameter.copy_(value)


def _refused(loop: Loop, window: Window) -> Any:
    raise CountError("there is nothing wrong with this window")


def _refused_after_the_step(loop: Loop, window: Window) -> Any:
    _update(loop, window)
    raise CountError("too late")


WRONG: dict[str, Way] = {
    "the mean of means": lambda loop, window: _by_hand(loop, window, lambda _: 1 / len(window)),
    "divided by nothing": lambda loop, window: _by_hand(loop, window, lambda _: 1.0),
    "never cleared": lambda loop, window: _by_hand(
        loop, window, lambda size: size / len(joined(window)), clear=False
    ),
    "one micro-batch left out": lambda loop, window: _update(loop, window[:-1]),
    "refused": _refused,
    "refused after the step": _refused_after_the_step,
}
WRONG_OVER_RANKS: dict[str, Way] = {"ranks alike": _ranks_alike, "sums of the root dropped": _gathered}
"""What happened to ranks whose means were averaged, and where an evaluation had left ``fully_shard`` gathered."""
