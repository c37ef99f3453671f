"""Losses that couple the items of a window: two passes let the loss see all items at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from gradgate.accumulation._arguments import Into, check_window
from gradgate.accumulation._open_window import OpenWindow
from gradgate.accumulation.coupled._representations import Encode
from gradgate.accumulation.coupled._two_passes import TwoPasses
from gradgate.byte_sizes import as_bytes
from gradgate.errors import OptionError, UpdateError


class CoupledWindow(OpenWindow):
    """A window that also takes losses over all of its micro-batches at once."""

    _coupled_micro_batches = 0
    _encoding = -1  # the number of the micro-batch that runs in a coupled loss
    _coupled: tuple[str, ...] = ()  # names of coupled losses so far
    _unnamed = "", 0  # the last one without a name, and the micro-batch of the loop that it was called in

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
        """Add the gradient of a loss over all items of the window, in the memory of one micro-batch.

        The gradient is that of the unsplit batch, for any ``loss_fn``. Micro-batches are encoded without graphs;
        the loss and its gradient are computed at the representations of all items; then each micro-batch is
        encoded again, and that gradient is backpropagated through it. Dropout draws the same numbers both times,
        and buffers (running statistics) are updated once.

        With several ranks, ``loss_fn`` sees the representations of all ranks, in their order, and returns the same
        loss on each. A rank may have no micro-batch.

        Args:
            encode: takes a micro-batch, returns its representations: a tensor, or a tuple, dict or dataclass of
                tensors, with the items along dimension 0. For a statistic of the whole micro-batch, dimension 0 has
                size 1; scalars, shape ``[]``, are stacked. Tensors of integers, such as labels, are passed on.
            micro_batches: the micro-batches of the window: a list, a window of :func:`windows`. All are held. A
                plan makes them of one batch: ``[micro.data for micro in plan.split(batch)]``.
            loss_fn: takes the representations of the window: what ``encode`` returns, with the micro-batches
                concatenated along dimension 0. Returns the loss, shape ``[]``, not divided by anything. Parameters
                that it uses, such as a temperature, get their gradient.
            budget_bytes: the memory for graphs kept from the first pass, in bytes or as "2GiB". The last
                micro-batches, as many as fit, are not encoded again. By default the last one is kept, which takes
                no more than encoding it again would; 0 keeps none. Not available under ``fully_shard``.
            name: the name of the loss, by default "coupled", "coupled 2" and so on. It adds to the update's other
                losses, coupled or ordinary.
            into: as for :meth:`Update.backward`.

        Raises:
            ShapeError: ``encode`` returns no tensors, or rows of micro-batches differ in shape or dtype; or the
                loss is not a floating scalar.
            GraphError: the loss does not depend on the representations, or they depend on no owned parameter.
            CountError: the window has no items.
            OptionError: ``micro_batches`` is one batch; or a budget is given under ``fully_shard``.
            UpdateError: ``encode`` returns different representations the second time; the update is not open, or
                its losses were all-reduced already.
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
            name = before if 0 < at < now else name  # the same call, in another iteration of the loop
            self._unnamed = name, now
        if name in self._coupled or (name in self._sums.by_name and self._shared.unfinished is None):
            raise UpdateError(
                f"backward_coupled: this update has a loss {name!r} already. A coupled loss is one call for the "
                "whole window: call it once, outside the loop over micro-batches. Name others: name='images'."
            )
        self._coupled += (name,)
        if name in self._sums.by_name:
            return  # the saved window that this update continues holds it
        if self._coordinator.all_reduced:
            raise UpdateError(
                f"backward_coupled: {name!r} comes after the last backward pass of the window, whose gradients "
                "have been all-reduced. Call it before the loop over micro-batches, or use sync='last'."
            )
        budget = _bytes(budget_bytes, sharded=self._coordinator.sharded is not None)
        TwoPasses(self, name, into, budget, self._at).run(encode, micro_batches, loss_fn)

    @property
    def _running(self) -> int:
        """The place of the micro-batch that runs."""
        return self._encoding if self._coupled else self._counter.micro_batches - 1

    def _at(self, number: int) -> None:
        self._encoding = number
        own = min(number + 1, self._coordinator.own_micro_batches)  # some ranks repeat their last one
        self._coupled_micro_batches = max(self._coupled_micro_batches, int(own))


def _bytes(budget: float | str | None, *, sharded: bool) -> int | None:
    """Return a budget in bytes."""
    if budget is None:
        return None
    if budget == 0:
        return 0
    if sharded:
        raise OptionError(
            "backward_coupled: budget_bytes does not work under fully_shard, where all ranks have to keep the same "
            "graphs. Leave it out: the last micro-batch's graph is kept."
        )
    return as_bytes(budget, "backward_coupled")
