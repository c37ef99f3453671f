"""The two passes of a loss over a window: representations, the loss, and its gradient through each micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradgate.coupled._representations import Encoded, Encoder, form_of
from gradgate.errors import CountError, GraphError, ShapeError
from gradgate.pytree import children, mapped_tensors
from gradgate.ranks import Coordinator


class GradientPart(NamedTuple):
    """A part of a coupled loss's gradient, as a scalar whose backward pass computes it."""

    loss: Tensor  # the loss itself, or a scalar whose gradient is that part
    rows: int  # the number of this rank's items that the part adds to the count
    items: float  # the part's weight: dividing the sum by the window's items gives the loss's gradient
    entries: Sequence[Tensor] = ()  # leaves other than parameters that receive gradients, too


def two_passes(
    encoder: Encoder,
    micro_batches: list[Any],
    loss_fn: Callable[[Any], Tensor],
    *,
    device: torch.device,
    coordinator: Coordinator,
    begin: Callable[[int, bool], object],
) -> Generator[GradientPart, None, None]:
    """Yield the parts of a coupled loss's gradient. The caller backpropagates each before it takes the next.

    The first part flows to the representations and to the parameters that the loss itself uses. Each further part
    flows through one micro-batch.

    ``loss_fn`` returns a scalar with a graph. ``device`` is that of the representations of a rank without any.
    ``begin`` is called before each micro-batch with its number, and whether this is the second pass.
    """
    own = len(micro_batches)
    given = list(
        coordinator.pad_to_longest(micro_batches)
    )  # under fully_shard, all ranks must run equally many passes
    coordinator.begin(last=False)
    parts = encoder.first(given, lambda number: begin(number, False))
    seed: list[Tensor] = []  # the seed of the loss's backward pass
    part, items = _of_loss(parts[:own], loss_fn, seed, coordinator, device)
    yield part
    del part
    order = sorted(
        range(len(parts)), key=lambda number: not parts[number].kept
    )  # to free the kept graph first
    reached = False
    try:
        for place, number in enumerate(order):
            encoded = parts[number]
            begin(number, True)
            coordinator.begin(last=place == len(order) - 1)
            leaves = encoded.leaves if encoded.kept else encoder.again(encoded)
            encoded.leaves = []
            reached |= any(leaf.requires_grad for leaf in leaves)
            pairs = _gradients(
                leaves, encoded.entries, counted=number < own, sharded=coordinator.sharded is not None
            )
            if pairs:
                scalar: Tensor = _Surrogate.apply(  # type: ignore[no-untyped-call]
                    seed, [gradient for _, gradient in pairs], *(leaf for leaf, _ in pairs)
                )
                yield GradientPart(scalar, 0, items)
                del scalar
            encoded.data, encoded.entries, leaves, pairs = None, [], [], []
        if own and not reached:
            raise GraphError(
                "backward_coupled: no representation has a graph: encode ran under no_grad, detached them, or uses "
                "only frozen parameters. Compute them from the parameters with gradients enabled."
            )
    finally:
        encoder.finish()


def _of_loss(
    parts: Sequence[Encoded],
    loss_fn: Callable[[Any], Tensor],
    seed: list[Tensor],
    coordinator: Coordinator,
    device: torch.device,
) -> tuple[GradientPart, int]:
    """Compute the loss over all ranks' representations; return its gradient part, and the number of items."""
    tree, rows, items, entries = _joined(parts, coordinator, device)
    coordinator.begin(last=True)  # modules that run in the loss have no later backward pass
    loss = loss_fn(tree)
    del tree
    seen: Tensor = _SeenSeed.apply(loss, seed)  # type: ignore[no-untyped-call]
    # Every rank computes the same loss, so each adds only its share to the parameters that the loss itself uses.
    return GradientPart(seen, rows, items / coordinator.count, entries), items


def _joined(
    parts: Sequence[Encoded], coordinator: Coordinator, device: torch.device
) -> tuple[Any, int, int, list[Tensor]]:
    """Return all ranks' representations, this rank's item count, the total, and the leaves of the loss's graph."""
    trees = [part.tree for part in parts]
    for tree in trees:
        if form_of(tree) != form_of(trees[0]):
            raise ShapeError(
                f"backward_coupled: encode returned {_described(trees[0])} for the first micro-batch and "
                f"{_described(tree)} for another. Their rows are concatenated, so all need the same keys, "
                "dtypes and sizes beyond dimension 0. Return a value that differs between micro-batches as a "
                "tensor: torch.tensor(value)."
            )
    own = [[entry if entry.dim() else entry[None] for entry in part.entries] for part in parts]
    leaves = [list(of_leaf) for of_leaf in zip(*own, strict=True)]
    before, after, tree = coordinator.gather_rows(
        [torch.cat([each.detach() for each in of_leaf]) for of_leaf in leaves],
        trees[0] if trees else None,
        device,
    )
    rows = sum(len(entry) for entry in leaves[0]) if leaves else 0
    columns = leaves or [[] for _ in before]
    joined = [
        torch.cat([*first, *of_leaf, *then])
        for first, of_leaf, then in zip(before, columns, after, strict=True)
    ]
    items = len(joined[0]) if joined else 0
    if not items:
        raise CountError(
            "backward_coupled: the window has no items, so there is nothing to step on. Skip this update: do "
            "not enter the block for an empty window."
        )
    if parts:
        entries = [entry for part in parts for entry in part.entries if entry.requires_grad]
    else:  # the loss's backward pass may communicate with all ranks, so it runs on this rank too
        entries = [each.requires_grad_() for each in joined if each.is_floating_point() or each.is_complex()]
    values = iter(joined)
    return mapped_tensors(tree, lambda _: next(values)), rows, items, entries


def _gradients(
    leaves: Sequence[Tensor], entries: Sequence[Tensor], *, counted: bool, sharded: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return the representations through which a micro-batch's backward pass runs, each with its gradient."""
    pairs = []
    for leaf, entry in zip(leaves, entries, strict=True):
        gradient = entry.grad if counted else None
        if gradient is None and sharded:  # every rank must run this pass
            gradient = torch.zeros_like(leaf)
        if leaf.requires_grad and gradient is not None:
            pairs.append((leaf, gradient))
    return pairs


class _SeenSeed(torch.autograd.Function):
    """Records the seed of a loss's backward pass, such as the loss scale."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, seen: list[Tensor]) -> Tensor:
        ctx.seen = seen
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor, None]:
        ctx.seen[:] = [seed.clone()]  # a hook on the loss may change it in place
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
