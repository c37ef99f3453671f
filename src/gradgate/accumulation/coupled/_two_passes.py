"""The two passes of a loss over a window: representations, the loss, and its gradient through each micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._arguments import Into, receivers, refuse_unreached
from gradgate.accumulation._loss_checks import check_scalar, refuse_hidden_parameters
from gradgate.accumulation._open_window import OpenWindow
from gradgate.accumulation.coupled._representations import Encode, Encoded, Encoder, form_of
from gradgate.autograd_graph import Graph
from gradgate.errors import CountError, GraphError, ShapeError
from gradgate.pytree import children, mapped_tensors


class TwoPasses:
    """The passes of one coupled loss in an open window.

    The gradient is a sum of parts: one flows through each micro-batch, and one to the parameters that the loss
    itself uses. Each part is weighted by the number of items in the window, so that the window's final division by
    that number gives the gradient of the loss.

    Args:
        window: the open window, whose sums receive the parts.
        name: the name of the loss.
        into: as the caller passed it.
        budget_bytes: the memory for kept graphs; None: the last graph is kept.
        at: called with the number of each micro-batch that runs.
    """

    def __init__(
        self,
        window: OpenWindow,
        name: str,
        into: Into | None,
        budget_bytes: int | None,
        at: Callable[[int], object],
    ) -> None:
        self._window, self._name, self._budget, self._at = window, name, budget_bytes, at
        self._coordinator, self._sums = window._coordinator, window._sums
        settings = window._settings
        self._models = settings.models
        self._receiving = None if into is None else receivers(into, self._sums.parameters, settings.models)
        self._seed: list[Tensor] = []  # the seed of the loss's backward pass
        self._items = 0
        self._reached = False

    def run(self, encode: Encode, micro_batches: Iterable[Any], loss_fn: Callable[[Any], Tensor]) -> None:
        window, coordinator = self._window, self._coordinator
        given = list(micro_batches)
        own = len(given)
        given = list(coordinator.even(given))  # under fully_shard, all ranks must run equally many passes
        encoder = Encoder(
            encode,
            self._models,
            sharded=coordinator.sharded,
            budget_bytes=self._budget,
            thorough=window._first,
        )
        coordinator.begin(last=False)
        parts = encoder.first(given, self._begin)
        self._backward_loss(parts[:own], loss_fn)
        try:
            self._backward_parts(parts, own, encoder)
        finally:
            window._shared.batch_norms.pause(False)
            encoder.finish()

    def _begin(self, number: int) -> None:
        self._at(number)
        repeated = number >= self._coordinator.own_micro_batches
        self._window._shared.batch_norms.next_micro_batch(repeated=repeated)

    # -- the loss ---------------------------------------------------------------------------------

    def _backward_loss(self, parts: Sequence[Encoded], loss_fn: Callable[[Any], Tensor]) -> None:
        """Compute the loss, and its gradient at the entries and at the parameters that the loss uses."""
        tree, rows, entries = self._joined(parts)
        self._coordinator.begin(last=True)  # modules that run in the loss have no later backward pass
        # Every rank computes the loss over all representations, so one rank's statistics suffice.
        self._window._shared.batch_norms.pause(self._coordinator.rank != 0)
        loss = loss_fn(tree)
        del tree
        check_scalar(loss)
        if not loss.requires_grad:
            raise GraphError(
                "backward_coupled: the loss depends on no representation: loss_fn detached them, or computed it "
                "under no_grad or from .item(). Compute it from the representations that loss_fn receives."
            )
        refuse_hidden_parameters(loss)
        if self._window._scale is not None:
            self._window._scale.look_at(loss)
        with torch.autocast(loss.device.type, enabled=False):
            # Every rank computes the same loss, so each adds only its share to the parameters that the loss
            # itself uses.
            share = self._items / self._coordinator.count
            seen: Tensor = _SeenSeed.apply(loss, self._seed)  # type: ignore[no-untyped-call]
            self._sums.add(self._name, seen, rows, "mean", False, self._receiving, items=share, also=entries)

    def _joined(self, parts: Sequence[Encoded]) -> tuple[Any, int, list[Tensor]]:
        """Return all ranks' representations, this rank's item count, and the tensors that collect gradients."""
        trees = [part.tree for part in parts]
        for tree in trees:
            if form_of(tree) != form_of(trees[0]):
                raise ShapeError(
                    f"backward_coupled: encode returned {_described(trees[0])} for the first micro-batch and "
                    f"{_described(tree)} for another. Their rows are concatenated, so all need the same keys, "
                    "dtypes and sizes beyond dimension 0. A value that is not the same for all is returned as a "
                    "tensor: torch.tensor(value)."
                )
        own = [[entry if entry.dim() else entry[None] for entry in part.entries] for part in parts]
        leaves = [list(of_leaf) for of_leaf in zip(*own, strict=True)]
        before, after, tree = self._coordinator.gather_rows(
            [torch.cat([each.detach() for each in of_leaf]) for of_leaf in leaves],
            trees[0] if trees else None,
            self._sums.parameters[0].device,
        )
        rows = sum(len(entry) for entry in leaves[0]) if leaves else 0
        columns = leaves or [[] for _ in before]
        joined = [
            torch.cat([*first, *of_leaf, *then])
            for first, of_leaf, then in zip(before, columns, after, strict=True)
        ]
        self._items = len(joined[0]) if joined else 0
        if not self._items:
            raise CountError(
                "backward_coupled: the window has no items, so there is nothing to step on. Skip this update: do "
                "not enter the block for an empty window."
            )
        if parts:
            entries = [entry for part in parts for entry in part.entries if entry.requires_grad]
        else:  # the backward pass of the loss may be shared by all ranks, so it runs here too
            entries = [
                each.requires_grad_() for each in joined if each.is_floating_point() or each.is_complex()
            ]
        values = iter(joined)
        return mapped_tensors(tree, lambda _: next(values)), rows, entries

    # -- the micro-batches ------------------------------------------------------------------------

    def _backward_parts(self, parts: list[Encoded], own: int, encoder: Encoder) -> None:
        """Backpropagate the gradient at the entries through each micro-batch, those with kept graphs first."""
        window = self._window
        order = [number for number, part in enumerate(parts) if part.kept_bytes is not None]
        order += [number for number, part in enumerate(parts) if part.kept_bytes is None]
        started, reached = False, False
        for place, number in enumerate(order):
            part = parts[number]
            self._at(number)
            self._coordinator.begin(last=place == len(order) - 1)
            leaves, part.leaves = part.leaves, []
            if part.kept_bytes is None:
                if not started:
                    started = True
                    window._shared.batch_norms.pause(True)
                    encoder.begin_second()
                leaves = encoder.again(part)
            reached |= self._backward_part(part, leaves, counted=number < own, coupled=len(parts) > 1)
            part.data, part.entries, leaves = None, [], []
        if not reached and any(number < own for number in order):
            raise GraphError(
                "backward_coupled: no representation has a graph: encode ran under no_grad, detached them, or uses "
                "only frozen parameters. Compute them from the parameters with gradients enabled."
            )
        if self._receiving is not None and window._first and not self._reached:
            refuse_unreached(self._receiving, self._models)

    def _backward_part(self, part: Encoded, leaves: list[Tensor], *, counted: bool, coupled: bool) -> bool:
        """Run one micro-batch's backward pass; return whether it has a graph."""
        pairs = []
        for leaf, entry in zip(leaves, part.entries, strict=True):
            gradient = entry.grad if counted else None
            if gradient is None and self._coordinator.sharded:  # every rank must run this pass
                gradient = torch.zeros_like(leaf)
            if leaf.requires_grad and gradient is not None:
                pairs.append((leaf, gradient))
        if not pairs:
            return any(leaf.requires_grad for leaf in leaves)
        window = self._window
        gradients = [gradient for _, gradient in pairs]
        surrogate: Tensor = _Surrogate.apply(  # type: ignore[no-untyped-call]
            self._seed, gradients, *(leaf for leaf, _ in pairs)
        )
        if window._first:
            refuse_hidden_parameters(surrogate)
        if coupled or self._coordinator.count > 1:
            window._shared.batch_norms.warn_once(self._name, surrogate, stacklevel=6)
        if self._receiving is not None and window._first:
            graph = Graph(surrogate)
            self._reached |= any(parameter in graph for parameter in self._receiving)
        with torch.autocast(surrogate.device.type, enabled=False):
            self._sums.add(self._name, surrogate, 0, "mean", False, self._receiving, items=self._items)
        return True


class _SeenSeed(torch.autograd.Function):
    """Records the seed of a loss's backward pass, such as the loss scale."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, seen: list[Tensor]) -> Tensor:
        ctx.seen = seen
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor, None]:
        ctx.seen[:] = [seed]
        return seed, None


class _Surrogate(torch.autograd.Function):
    """Makes a scalar whose gradient with respect to some representations is given.

    The given gradient contains the seed of the pass that computed it. The seed of this pass replaces it.
    """

    @staticmethod
    def forward(ctx: Any, seed: list[Tensor], gradients: list[Tensor], *leaves: Tensor) -> Tensor:
        ctx.seed, ctx.gradients = seed, gradients
        return torch.zeros((), dtype=seed[0].dtype if seed else leaves[0].dtype, device=leaves[0].device)

    @staticmethod
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        if ctx.seed:
            factor = seed / ctx.seed[0].to(seed.device)
            gradients = [gradient * factor.to(gradient.device) for gradient in gradients]
        return None, None, *gradients


def _described(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {['n', *tree.shape[1:]]}"
    inside = children(tree)
    if inside is None:
        return repr(tree)
    return ", ".join([_described(item) for _, item in inside[:5]] + ["..."] * (len(inside) > 5))
