"""Encodes the micro-batches of a window, keeps the last graph, and encodes the others again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from gradgate.errors import ShapeError, UpdateError
from gradgate.forward_state import AtRest, ForwardState, random_states
from gradgate.pytree import children, mapped_tensors, tensors_in

Encode = Callable[[Any], Any]


@dataclass(eq=False)
class Encoded:
    """One micro-batch and its representations."""

    data: Any
    tree: Any  # the pytree that ``encode`` returned, with each tensor reduced to zero rows
    leaves: list[Tensor]  # the tensors of that pytree, attached to their graph if it is kept
    entries: list[Tensor]  # the same tensors, detached; the loss uses these, and they collect its gradient
    random: list[Callable[[], object]]  # functions that restore the random generators as they were before
    kept: bool  # whether the graph is kept


class Encoder:
    """Runs ``encode`` on every micro-batch once, and again on all but the last, whose graph is kept.

    Keeping one graph takes no more memory than encoding again. Before the second run, random generators, and the
    buffers, attributes and parameters of modules are restored, except parameters in ``owned`` and tensors
    ``at_rest``, which encoding does not change. The micro-batches run again in the same order, so the state of
    modules evolves as before and needs no copy per micro-batch.

    Without ``modules``, the state of each module is recorded when it runs. If ``sharded``, only buffers are
    restored. The representations of both runs are compared on a CPU, and with ``thorough`` on other devices too.
    """

    def __init__(
        self,
        encode: Encode,
        modules: Iterable[nn.Module],
        *,
        owned: Sequence[Tensor],
        at_rest: AtRest,
        sharded: bool,
        thorough: bool,
    ) -> None:
        self._encode, self._owned, self._at_rest = encode, owned, at_rest
        self._sharded, self._thorough = sharded, thorough
        self._modules = {id(module): module for module in modules}
        self._before: list[ForwardState] = []
        self._after: list[ForwardState] = []

    def first(self, micro_batches: Sequence[Any], begin: Callable[[int], object]) -> list[Encoded]:
        """Encode and return all micro-batches; ``begin`` is called with the number of each."""
        parts: list[Encoded] = []
        with self._recording():
            for number, data in enumerate(micro_batches):
                begin(number)
                random = random_states()
                last = number == len(micro_batches) - 1
                leaves, tree = self._run(data, grad=last)
                parts.append(Encoded(data, tree, leaves, [_entry(leaf) for leaf in leaves], random, last))
        return parts

    def again(self, part: Encoded) -> list[Tensor]:
        """Return a micro-batch's representations, encoded again with a graph. The first call restores modules."""
        if not self._after:
            self._rewind()
        for restore in part.random:
            restore()
        leaves, _ = self._run(part.data, grad=True)
        if self._thorough or all(leaf.is_cpu for leaf in leaves):
            _check_same(part.entries, leaves)
        return leaves

    def _rewind(self) -> None:
        """Save the state that the first pass left, and restore the state before it."""
        changed = [name for state in self._before for name in state.changed_at_rest()]
        if changed:
            raise UpdateError(
                f"backward_coupled: encode has changed {', '.join(changed)} for the first time in this window. No "
                "earlier window had changed it, so it was not copied, and the second pass would change it again. "
                "Change it once for each update instead, outside encode. No step was made, but these changes "
                "remain."
            )
        for state in self._before:
            state.settle()  # before the next copy, which then leaves out what the first pass did not change
        self._after = [self._state_of(self._modules.values())]
        for state in reversed(self._before):
            state.restore()

    def finish(self) -> None:
        """Leave modules and generators in the state that a single pass would have left."""
        for state in self._after:
            state.restore()
        self._after = []

    def _run(self, data: Any, *, grad: bool) -> tuple[list[Tensor], Any]:
        with torch.enable_grad() if grad else torch.no_grad():
            tree = self._encode(data)
        leaves = list(tensors_in(tree))
        if not leaves:
            raise ShapeError(
                f"backward_coupled: encode returned a {type(tree).__name__} without a tensor. Return the "
                "representations: a tensor, or a tuple, dict or dataclass of tensors."
            )
        return leaves, mapped_tensors(tree, _placeholder, _check_leaf)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record the state of modules before they run."""
        if self._modules:
            self._before = [self._state_of(self._modules.values())]
            yield
            return
        handle = register_module_forward_pre_hook(self._record)
        try:
            yield
        finally:
            handle.remove()

    def _record(self, module: nn.Module, inputs: Any) -> None:
        new = [inner for inner in module.modules() if id(inner) not in self._modules]
        if new:
            self._modules |= {id(inner): inner for inner in new}
            self._before.append(self._state_of(new))

    def _state_of(self, modules: Iterable[Any]) -> ForwardState:
        if self._sharded:
            modules = [dict(module.named_buffers(recurse=False)) for module in modules]
        return ForwardState(modules, self._owned, self._at_rest)


def _entry(leaf: Tensor) -> Tensor:
    entry = leaf.detach()
    return entry.requires_grad_() if entry.is_floating_point() or entry.is_complex() else entry


def _placeholder(leaf: Tensor) -> Tensor:
    return torch.empty(0, *leaf.shape[1:], dtype=leaf.dtype)


def _check_leaf(leaf: Any) -> None:
    """Raise ShapeError for a value that is not hashable, or that holds tensors in its attributes."""
    hidden = tensors_in(list(getattr(leaf, "__dict__", {}).values()))
    if not isinstance(leaf, Hashable) or next(hidden, None) is not None:
        raise ShapeError(
            f"backward_coupled: encode returned a value of type {type(leaf).__name__}. Only tensors are "
            "concatenated, so loss_fn would see only the first micro-batch's value. Return tensors, in "
            "tuples, lists, dicts or dataclasses: torch.as_tensor(labels), distribution.loc."
        )


def form_of(tree: Any) -> Any:
    """Return a pytree's keys, values, dtypes and row shapes, which must be equal for all micro-batches."""
    if isinstance(tree, Tensor):
        return tree.dtype, tree.shape[1:]
    inside = children(tree)
    return tree if inside is None else (type(tree), [(key, form_of(item)) for key, item in inside])


def _check_same(entries: list[Tensor], leaves: list[Tensor]) -> None:
    """Raise UpdateError if a micro-batch's representations differ from those of the first pass."""
    for entry, leaf in zip(entries, leaves, strict=True):
        same = entry.shape == leaf.shape and entry.dtype == leaf.dtype
        if same and entry.is_floating_point() and not torch.equal(entry, leaf):
            dtypes = [entry.dtype, *_autocast_dtypes(entry.device.type)]
            tolerance = max(torch.finfo(dtype).eps for dtype in dtypes) ** 0.5
            same = torch.allclose(
                leaf.detach(),
                entry.detach(),
                rtol=tolerance,
                atol=tolerance * _largest(entry),
                equal_nan=True,
            )
        if not same:
            raise UpdateError(
                "backward_coupled: encode returned different representations the second time for the same "
                "micro-batch, so the gradient would be wrong. encode depends on state that is not restored between "
                "the two passes, such as its own counter or generator, or an iterator. The modules of model= and "
                "the generators of torch, Python and numpy are restored; pass every module: "
                "Accumulator(optimizer, model=[...]). No step was made."
            )


def _largest(entry: Tensor) -> float:
    finite = entry.detach()[entry.detach().isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _autocast_dtypes(device_type: str) -> list[torch.dtype]:
    return [torch.get_autocast_dtype(device_type)] if torch.is_autocast_enabled(device_type) else []
