"""States of several ranks in one checkpoint of torch.distributed, read by as many ranks or by others."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradgate.errors import StateError


def packed(state: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Return a rank's state under a key of its own, as bytes: its size is not known to who will read it."""
    file = io.BytesIO()
    torch.save(state, file)
    return {"ranks": ranks, f"rank {rank}": file.getvalue()}


def read(checkpoint_id: Any, key: str, rank: int, ranks: int) -> dict[str, Any]:
    """Return what this rank goes on from: its own state, or its share of those of another number of ranks.

    Raises:
        StateError: the checkpoint holds none under this key.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    known = FileSystemReader(checkpoint_id).read_metadata().state_dict_metadata
    saved = sum(name.startswith(f"{key}.rank ") for name in known)
    if not saved:
        raise StateError(
            f"load_checkpoint: the checkpoint holds no accumulator under {key!r}. Save it there: "
            f"dcp.save({{{key!r}: accumulator.state_by_rank(), ...}}, checkpoint_id=...)."
        )
    mine = range(rank, saved, ranks) if saved != ranks else [rank]
    wanted: dict[str, Any] = {key: {f"rank {number}": b"" for number in mine or [0]}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it reads for this process alone, as is meant
        load(wanted, checkpoint_id=checkpoint_id, no_dist=True)
    states = [_unpacked(wanted[key][f"rank {number}"]) for number in mine or [0]]
    if saved == ranks:
        return states[0]
    return _merged(states if mine else [], states[0])


def _unpacked(state: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return found


def _merged(states: Sequence[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any]:
    """Put the unfinished windows of some ranks together: their sums add. What is the same on all is taken from one.

    Micro-batches are counted anew, for another number of ranks deals what is left of the window in its own way.
    """
    windows = [one["window"] for one in states if one["window"] is not None]
    if like["window"] is None:
        return like
    names = dict.fromkeys(saved["name"] for window in windows for saved in window["sums"])
    sums = [
        _added([saved for window in windows for saved in window["sums"] if saved["name"] == name])
        for name in names
    ]
    return {**like, "window": {"micro_batches": 0, "scale": like["window"]["scale"], "sums": sums}}


def _added(sums: Sequence[dict[str, Any]]) -> dict[str, Any]:
    unit = max((one["unit"] for one in sums if one["unit"] is not None), default=None)
    gradients: list[Tensor | None] = [None] * len(sums[0]["gradients"])
    for one in sums:
        for place, gradient in enumerate(one["gradients"]):
            if gradient is not None and unit is not None:
                part = gradient * (one["unit"] / unit)
                before = gradients[place]
                gradients[place] = part if before is None else before + part
    joined = {key: [item for one in sums for item in one[key]] for key in ("counts", "reductions", "losses")}
    known = sum(one["known"] for one in sums)
    return {**sums[0], **joined, "unit": unit, "known": known, "gradients": gradients}
