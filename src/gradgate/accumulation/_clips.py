"""Warns about what a split changes below the loss: operations that mix samples, and hooks and gates that clip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradgate.accumulation._counts import terms_of
from gradgate.autograd_graph import mixing, walk
from gradgate.errors import CoupledLossWarning
from gradgate.torch_compat import dispatch_modes, leaf_hooks
from gradgate.user_warnings import warn

_TERMS = 4  # terms of a loss that are searched for mixed samples
_ROUNDING = 1e-3  # relative, of a norm that was clipped


def warn_if_mixed(loss: Tensor) -> bool:
    """Warn if an operation below a loss mixes samples. Return whether one does. Synchronizes."""
    if loss.is_meta or dispatch_modes.use():  # a mode counts operations, or measures memory
        return False
    terms = terms_of(loss.grad_fn)[:_TERMS]
    found = next((mixed for term, _ in terms if (mixed := mixing(term)) is not None), None)
    if found is None:
        return False
    warn(
        "backward: the model mixes the samples of a micro-batch: the gradients of the first and the last item "
        f"of this loss meet at {found.node}, whose result has shape {list(found.shape)}. A split changes which "
        "samples are mixed, so no split gives the gradient of the whole batch. If you did not intend this, "
        "check the dimensions of means, norms and softmaxes, and whether the layer needs batch_first=True. "
        "Otherwise, make micro-batches as large as memory allows. Ignore this warning if the items are parts "
        "of a single sample, such as the nodes of a graph.",
        CoupledLossWarning,
    )
    return True


class _Seen(NamedTuple):
    """What a hook made of a gradient: the norms before and after, if the hook changed the norm alone."""

    before: float
    after: float


class Clips:
    """Looks for clipping hooks on parameters, and for ``clip_gradient``, in the first windows of an accumulator.

    A hook is only observed: for one backward pass, a function that calls it takes its place. A hook clips if it
    limits all entries to one size, or if it gives gradients of different norms the same norm. Hooks that scale or
    mask the gradient are linear, so they commute with the sum over micro-batches.
    """

    def __init__(self) -> None:
        self._told = False
        self._clipping: Tensor | None = None  # the parameter of a hook that was seen to clip
        self._seen: dict[tuple[int, Any], _Seen] = {}

    def check_gates(self, loss: Tensor) -> None:
        """Warn if a graph holds ``clip_gradient``."""
        if not self._told and any(node.name() == "_ClippedBackward" for node, _ in walk(loss.grad_fn)):
            self._warn(
                "the graph holds gg.clip_gradient, which clips",
                "Clip the whole batch's gradient: Accumulator(optimizer, clip_norm=1.0). Or multiply max_value by "
                "the number of items in the window over that in the micro-batch, which is exact.",
            )

    def warn(self, name: Callable[[Tensor], str]) -> None:
        """Warn if a hook clipped. ``name`` returns a parameter's name."""
        if self._clipping is not None and not self._told:
            self._warn(
                f"a hook on {name(self._clipping)} clips",
                "Remove the hook, and clip the whole batch's gradient: Accumulator(optimizer, clip_value=0.1) or "
                "clip_norm=1.0; for some parameters only, clip parameter.grad in a hook that you register with "
                "optimizer.register_step_pre_hook.",
            )

    def _warn(self, what: str, instead: str) -> None:
        self._told = True
        warn(
            f"backward: {what} the gradient of each micro-batch. The mean of clipped gradients is not the clipped "
            f"gradient of the whole batch. {instead}",
            CoupledLossWarning,
        )

    @contextmanager
    def observed(self, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Observe the hooks on parameters during a backward pass."""
        tables = [(p, table) for p in parameters if not p.is_meta for table in leaf_hooks.use(p)]
        replaced: list[tuple[Any, Any, Any, Any]] = []
        for parameter, table in tables:
            for key, hook in list(table.items()):
                table[key] = spy = partial(self._run, hook, parameter, (id(parameter), key))
                replaced.append((table, key, hook, spy))
        try:
            yield
        finally:
            for table, key, hook, spy in replaced:
                if table.get(key) is spy:  # a hook may remove itself
                    table[key] = hook

    def _run(
        self, hook: Callable[[Tensor], Any], parameter: Tensor, key: tuple[int, Any], given: Tensor
    ) -> Any:
        """Run a hook on a gradient, or on the parameter whose gradient was just accumulated."""
        after_accumulation = given is parameter
        gradient = given.grad if after_accumulation else given
        if gradient is None or gradient.layout != torch.strided:
            return hook(given)
        before = gradient.detach().clone()
        result = hook(given)
        after = given.grad if after_accumulation else given if result is None else result
        if (
            isinstance(after, Tensor)
            and after.shape == before.shape
            and self._clipped(key, before, after.detach())
        ):
            self._clipping = parameter
        return result

    def _clipped(self, key: tuple[int, Any], before: Tensor, after: Tensor) -> bool:
        """Return whether a hook clipped, by value or, compared with its last call, by norm."""
        if torch.equal(before, after):
            seen = _Seen(float(before.norm()), float(before.norm()))
        else:
            changed = before != after
            sizes, limit = before.abs(), after.abs().max()
            limited = torch.where(changed, (after.abs() == limit) & (sizes > limit), sizes <= limit).all()
            if limit > 0 and limited and sizes.unique().numel() > 1:
                return True
            seen = _Seen(float(before.norm()), float(after.norm()))
            if not seen.after or not torch.allclose(after * seen.before, before * seen.after, rtol=_ROUNDING):
                self._seen.pop(key, None)
                return False
        last, self._seen[key] = self._seen.get(key), seen
        if last is None:
            return False
        # One of both was clipped, to the limit that the other one reaches or respects.
        low, high = sorted((last, seen))
        clipped = high.after < high.before * (1 - _ROUNDING)
        same = abs(low.after - high.after) <= _ROUNDING * high.after
        apart = low.before < high.before * (1 - _ROUNDING)
        return clipped and apart and (same or (low.after == low.before and low.before <= high.after))
