"""Losses that couple the items of a window: two passes let the loss see all items at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._calls import Into, check_window, receivers, refuse_unreached
from gradgate.accumulation._loss_checks import check_scalar, refuse_hidden_parameters
from gradgate.accumulation._open_window import OpenWindow
from gradgate.autograd_graph import Graph
from gradgate.byte_sizes import as_bytes
from gradgate.coupled import Encode, two_passes
from gradgate.errors import GraphError, OptionError, UpdateError


class CoupledWindow(OpenWindow):
    """A window that also takes losses over all of its micro-batches at once."""

    _coupled_micro_batches = 0
    _encoding = -1  # the index of the micro-batch that a coupled loss is running
    _coupled: tuple[str, ...] = ()  # names of coupled losses so far
    _unnamed = "", 0  # the last name that was generated, and the loop's micro-batch at that call

    def backward_coupled(
        self,
        encode: Encode,
        micro_batches: Iterable[Any],
        loss_fn: Callable[[Any], Tensor],
        *,
        budget_bytes: float | str | None = None,
        name: str | None = None,
        into: Into | None = None,
    ) -> None:
        """Add the gradient of a loss over all items of the window, using the memory of one micro-batch.

        The gradient is that of the unsplit batch, for any ``loss_fn``. Micro-batches are encoded without graphs.
        The loss, and its gradient with respect to the representations, are computed from the representations of all
        items. Then each micro-batch is encoded again, and its part of that gradient is backpropagated. Dropout
        draws the same numbers both times. Buffers (running statistics), and parameters that no optimizer owns (a
        momentum encoder), change once.

        With several ranks, ``loss_fn`` receives the representations of all ranks, in rank order, and returns the
        same loss on each. A rank may have no micro-batch.

        Args:
            encode: takes a micro-batch and returns its representations: a tensor, or a tuple, dict or dataclass of
                tensors, with the items along dimension 0. A statistic of the whole micro-batch has size 1 along
                dimension 0; scalars, shape ``[]``, are stacked. Integer tensors, such as labels, are passed
                through.
            micro_batches: the micro-batches of the window: a list, or a window from :func:`windows`. All are kept
                in memory. To split a single batch, use a plan: ``[micro.data for micro in plan.split(batch)]``.
            loss_fn: takes the output of ``encode``, concatenated over micro-batches along dimension 0. Returns the
                loss, shape ``[]``, not divided by anything. Parameters that it uses, such as a temperature, get
                their gradient.
            budget_bytes: the memory for graphs kept from the first pass, in bytes or as "2GiB". The last
                micro-batches, as many as fit, are not encoded again. By default only the last graph is kept, which
                takes no more memory than encoding it again; 0 keeps none. Not available under ``fully_shard``.
            name: the name of the loss, by default "coupled", "coupled 2" and so on. The loss is added to the
                update's other losses, coupled or ordinary.
            into: the same as for :meth:`Update.backward`.

        Raises:
            ShapeError: ``encode`` returns no tensors, or rows of micro-batches differ in shape or dtype; or the
                loss is not a floating scalar.
            GraphError: the loss does not depend on the representations, or they depend on no owned parameter.
            CountError: the window has no items.
            OptionError: ``micro_batches`` is one batch; or a budget is given under ``fully_shard``.
            UpdateError: ``encode`` returns different representations the second time, or changes a large parameter
                that earlier windows left unchanged; the update is not open, or its gradients were already
                all-reduced.
            RankError: ranks have different representations, or another rank has stopped.

        Example:
            >>> encoder = torch.nn.Linear(3, 2)
            >>> accumulator = Accumulator(torch.optim.SGD(encoder.parameters(), lr=0.1), model=encoder)
            >>> batch = torch.randn(8, 3)
            >>> with accumulator.update() as update:
            ...     update.backward_coupled(encoder, batch.split(2), lambda z: -torch.cdist(z, z).mean())
            >>> update.count, update.micro_batch_count
            (8, 4)

        Sources:
            Gao, Zhang, Han, Callan 2021, arXiv:2101.06983. The derivation: docs/coupled_losses.md.
        """
        self._require_open("backward_coupled")
        check_window(micro_batches, "backward_coupled")
        if name is None:
            (before, at), now = self._unnamed, self._counter.micro_batches
            name = "coupled" if not self._coupled else f"coupled {len(self._coupled) + 1}"
            name = before if 0 < at < now else name  # the same call, in a later iteration of the loop
            self._unnamed = name, now
        if name in self._coupled or (name in self._sums.by_name and self._shared.unfinished is None):
            raise UpdateError(
                f"backward_coupled: this update already has a loss named {name!r}. Call backward_coupled once for "
                "the whole window, outside the loop over micro-batches. Give any further loss a name: "
                "name='images'."
            )
        self._coupled += (name,)
        if name in self._sums.by_name:
            return  # the loaded window already holds it
        if self._coordinator.all_reduced:
            raise UpdateError(
                f"backward_coupled: {name!r} comes after the window's last backward pass, which has already "
                "all-reduced the gradients. Call it before the loop over micro-batches, or use sync='last'."
            )
        budget = _bytes(budget_bytes, sharded=self._coordinator.sharded)
        self._add_parts(encode, list(micro_batches), loss_fn, budget, name, into)

    def _add_parts(
        self,
        encode: Encode,
        micro_batches: list[Any],
        loss_fn: Callable[[Any], Tensor],
        budget_bytes: int | None,
        name: str,
        into: Into | None,
    ) -> None:
        """Run the two passes, and add each micro-batch's part of the gradient to the window's sums."""
        coordinator, sums, models = self._coordinator, self._sums, self._settings.models
        batch_norms = self._shared.batch_norms
        receiving = None
        if into is not None:
            receiving = receivers(into, sums.parameters, models, sharded=coordinator.sharded)
        unreached = self._first and receiving

        def begin(number: int, second: bool) -> None:
            self._encoding = number
            own = min(number + 1, coordinator.own_micro_batches)  # some ranks repeat their last one
            self._coupled_micro_batches = max(self._coupled_micro_batches, int(own))
            batch_norms.next_micro_batch(repeated=second or number >= coordinator.own_micro_batches)

        def checked_loss(representations: Any) -> Tensor:
            # Every rank computes the loss over all representations, so one rank's statistics suffice.
            batch_norms.pause(coordinator.rank != 0)
            loss = loss_fn(representations)
            check_scalar(loss)
            if not loss.requires_grad:
                raise GraphError(
                    "backward_coupled: the loss depends on no representation: loss_fn detached them, or computed "
                    "the loss under no_grad or from .item(). Compute the loss from the representations that "
                    "loss_fn receives."
                )
            refuse_hidden_parameters(loss)
            if self._scale is not None:
                self._scale.look_at(loss)
                self._scale.refuse_clips(loss)
            return loss

        passes = two_passes(
            encode,
            micro_batches,
            checked_loss,
            modules=list(models),
            owned=sums.parameters,
            at_rest=self._shared.at_rest,
            coordinator=coordinator,
            budget_bytes=budget_bytes,
            thorough=self._first,
            begin=begin,
        )
        try:
            with closing(passes):
                for place, part in enumerate(passes):
                    if place and self._first:
                        refuse_hidden_parameters(part.loss)
                        if self._scale is not None:
                            self._scale.refuse_clips(part.loss)
                    if place and (len(micro_batches) > 1 or coordinator.count > 1):
                        batch_norms.warn_once(name, part.loss)
                    if place and unreached and any(map(Graph(part.loss).__contains__, unreached)):
                        unreached = None
                    with torch.autocast(part.loss.device.type, enabled=False):
                        sums.add(
                            name, part.loss, part.rows, "mean", False, receiving, part.items, part.entries
                        )
                    del part  # it keeps representations alive
        finally:
            batch_norms.pause(False)
        if unreached:
            refuse_unreached(unreached, models)

    @property
    def _running(self) -> int:
        """The index of the micro-batch that is running."""
        return self._encoding if self._coupled else self._counter.micro_batches - 1


def _bytes(budget: float | str | None, *, sharded: bool) -> int | None:
    """Return a budget in bytes."""
    if budget is None:
        return None
    if budget == 0:
        return 0
    if sharded:
        raise OptionError(
            "backward_coupled: budget_bytes does not work under fully_shard, where all ranks have to keep the same "
            "graphs. Leave budget_bytes out: the last micro-batch's graph is kept."
        )
    return as_bytes(budget, "backward_coupled")
