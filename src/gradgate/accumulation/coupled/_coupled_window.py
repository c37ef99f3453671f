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
        """Add the gradient of a loss over all items of the window, in the memory of one micro-batch.

        The gradient is that of the unsplit batch, for any ``loss_fn``. Micro-batches are encoded without graphs;
        the loss and its gradient are computed at the representations of all items; then each micro-batch is
        encoded again, and that gradient is backpropagated through it. Dropout draws the same numbers both times,
        and buffers (running statistics) are updated once.

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
            budget_bytes: the memory for graphs kept from the first pass, in bytes or as "2GiB". As many of the last
                micro-batches as fit are not encoded again. By default only the last graph is kept, which takes no
                more memory than encoding it again; 0 keeps none. Not available under ``fully_shard``.
            name: the name of the loss, by default "coupled", "coupled 2" and so on. The loss is added to the
                update's other losses, coupled or ordinary.
            into: the same as for :meth:`Update.backward`.

        Raises:
            ShapeError: ``encode`` returns no tensors, or rows of micro-batches differ in shape or dtype; or the
                loss is not a floating scalar.
            GraphError: the loss does not depend on the representations, or they depend on no owned parameter.
            CountError: the window has no items.
            OptionError: ``micro_batches`` is one batch; or a budget is given under ``fully_shard``.
            UpdateError: ``encode`` returns different representations the second time; the update is not open, or
                its gradients were already all-reduced.
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
                f"backward_coupled: this update already has a loss {name!r}. Call backward_coupled once for the "
                "whole window, outside the loop over micro-batches. Give each other loss a name: name='images'."
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
        TwoPasses(self, name, into, budget, self._at).run(encode, micro_batches, loss_fn)

    @property
    def _running(self) -> int:
        """The index of the micro-batch that is running."""
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
            "graphs. Leave budget_bytes out: the last micro-batch's graph is kept."
        )
    return as_bytes(budget, "backward_coupled")
