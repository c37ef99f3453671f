"""Gathers rows from all ranks, such as the representations that a loss compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradgate.errors import RankError
from gradgate.pytree import tensors_in
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._status_exchange import RankStatus, StatusExchange

Gathered: TypeAlias = "tuple[list[list[Tensor]], list[list[Tensor]], Any]"
"""Each tensor's rows on the ranks before this one, its rows on the ranks after it, and the tree of the tensors."""


def gather_rows(
    ranks: RankGroup,
    exchange: Callable[[RankStatus], StatusExchange],
    tensors: list[Tensor],
    tree: Any,
    device: torch.device,
) -> Gathered:
    """Gather tensors for :meth:`SingleProcess.gather_rows`.

    Raises:
        RankError: ranks have different tensors, or ``exchange`` raises it.
    """
    mine = [(len(each), str(each.dtype), tuple(each.shape[1:])) for each in tensors] if tensors else None
    of_ranks = [status.rows for status in exchange(RankStatus(phase="coupled", rows=mine)).statuses]
    kinds = {
        rank: ", ".join(f"{dtype} with rows of shape {shape}" for _, dtype, shape in rows)
        for rank, rows in enumerate(of_ranks)
        if rows is not None
    }
    first = next(iter(kinds), 0)
    for rank, kind in kinds.items():
        if kind != kinds[first]:
            raise RankError(
                f"update: the representations of rank {first} are {kinds[first]}; those of rank {rank} are {kind}. "
                "They cannot be concatenated. Let encode return the same dtypes and row shapes on every rank. No "
                "step was made."
            )
    if len(kinds) < ranks.count:
        tree = next((each for each in ranks.gather_objects(tree) if each is not None), None)
        tensors = tensors or [leaf.to(device) for leaf in tensors_in(tree)]
    gathered = [
        ranks.gather_rows(each, [0 if rows is None else int(rows[place][0]) for rows in of_ranks])
        for place, each in enumerate(tensors)
    ]
    return [of[: ranks.rank] for of in gathered], [of[ranks.rank + 1 :] for of in gathered], tree
