"""Adds a loss over all items of a window to an update: two passes let the loss see all items at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._calls import refuse_unreached
from gradgate.accumulation._loss_checks import check_scalar, refuse_hidden_parameters
from gradgate.autograd_graph import Graph
from gradgate.coupled import Encode, Encoder, two_passes
from gradgate.errors import GraphError


def add_coupled(
    update: Any,
    encode: Encode,
    micro_batches: list[Any],
    loss_fn: Callable[[Any], Tensor],
    name: str,
    receiving: Sequence[Tensor] | None,
) -> None:
    """Run the two passes, and add each micro-batch's part of the gradient to the sums of an ``Update``."""
    coordinator, sums, models = update._coordinator, update._sums, update._settings.models
    shared, scale, first = update._shared, update._scale, update._first
    unreached = first and receiving

    def begin(number: int, second: bool) -> None:
        update._running = number
        mine = min(number + 1, coordinator.own_micro_batches)  # some ranks repeat their last one
        update._coupled_micro_batches = max(update._coupled_micro_batches, int(mine))

    def checked_loss(representations: Any) -> Tensor:
        loss = loss_fn(representations)
        check_scalar(loss)
        if not loss.requires_grad:
            raise GraphError(
                "backward_coupled: the loss depends on no representation: loss_fn detached them, or computed "
                "the loss under no_grad or from .item(). Compute the loss from the representations that "
                "loss_fn receives."
            )
        refuse_hidden_parameters(loss)
        if scale is not None:
            scale.look_at(loss)
        return loss

    encoder = Encoder(
        encode,
        models,
        owned=sums.parameters,
        at_rest=shared.at_rest,
        sharded=coordinator.sharded is not None,
        thorough=first,
    )
    device = sums.parameters[0].device
    passes = two_passes(
        encoder, micro_batches, checked_loss, device=device, coordinator=coordinator, begin=begin
    )
    with closing(passes):
        for place, part in enumerate(passes):
            if place and first:
                refuse_hidden_parameters(part.loss)
            if place and (len(micro_batches) > 1 or coordinator.count > 1):
                shared.batch_norms.warn_once(name, part.loss)
            if place and unreached and any(map(Graph(part.loss).__contains__, unreached)):
                unreached = None
            with torch.autocast(part.loss.device.type, enabled=False):
                sums.add(name, part.loss, part.rows, "mean", False, receiving, part.items, part.entries)
            del part  # it keeps representations alive
    if unreached:
        refuse_unreached(unreached, models)
