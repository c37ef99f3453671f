"""Contrastive losses over all pairs of a batch, with memory that grows linearly with the batch."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from gradgate.errors import OptionError, ShapeError
from gradgate.losses._tiles import LogSumExp, PairwiseLogistic, uncast, wide
from gradgate.options import check_choice

_INDICES = (torch.int8, torch.int16, torch.int32, torch.int64)

Reduction: TypeAlias = Literal["mean", "sum", "none"]


@uncast
def info_nce(
    queries: Tensor,
    keys: Tensor,
    *,
    temperature: float | Tensor = 0.07,
    positives: Tensor | None = None,
    negatives: Tensor | None = None,
    excluded: Tensor | None = None,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return the InfoNCE loss: for each query, the cross entropy of its positive key among all keys.

    The loss of query *i* with positive *p* is ``logsumexp_j(q_i @ k_j / t) - q_i @ k_p / t``. The logits are
    computed in tiles, in the forward pass and again in the backward pass, and never stored as a matrix: memory
    grows with the number of queries and keys, not with their product.

    Args:
        queries: one row per query. Shape ``[Q, d]``, floating. Not normalized here: pass
            ``F.normalize(queries, dim=-1)`` for cosine similarities.
        keys: one row per key. Shape ``[K, d]``, the dtype of ``queries``. Extra keys are negatives for all queries.
        temperature: divides the logits, > 0. A tensor of shape ``[]`` gets its gradient.
        positives: the index of each query's positive key, shape ``[Q]``, or of up to P positive keys, shape
            ``[Q, P]``, padded with -1. The loss of a query is then the mean over its positives (``L_out`` of Khosla
            et al. 2020); a query without positives is left out. By default, key *i* is the positive of query *i*.
            Not a mask: a boolean ``mask`` of shape ``[Q, K]`` becomes indices by ``torch.where(mask,
            torch.arange(K), -1).topk(P).values``, where P is the largest number of positives of a query.
        negatives: further keys that belong to one query each (hard negatives). Shape ``[Q, N, d]``.
        excluded: for each query, the index of a key to leave out of its sum, shape ``[Q]``: the query itself, if
            queries and keys are the same rows (NT-Xent).
        weights: a weight for each query. Shape ``[Q]``. The mean is then the weighted mean.
        reduction: ``"mean"`` over queries, ``"sum"``, or ``"none"`` for one loss per query.
        group: a process group whose ranks hold the same rows, as in ``update.backward_coupled``. Each rank then
            computes the tiles of its share of the rows. By default this process computes all tiles.

    Returns:
        the loss, shape ``[]`` (or ``[Q]``), in float32 for 16-bit inputs. Queries, keys, negatives, weights and
        temperature get gradients. It cannot be differentiated twice.

    Raises:
        ShapeError: shapes or dtypes do not fit, or there are fewer keys than queries and no ``positives``.
        OptionError: the temperature is not positive, the reduction is unknown, or an index is out of range. Indices
            are checked on a CPU only, because reading them synchronizes other devices.

    Example:
        >>> queries = torch.eye(3)
        >>> info_nce(queries, queries, temperature=1.0)  # log(e + 1 + 1) - 1
        tensor(0.5514)

    Sources:
        van den Oord, Li, Vinyals 2018, arXiv:1807.03748, equation 4; several positives: Khosla et al. 2020,
        arXiv:2004.11362, equation 2; the running log-sum-exp: Milakov and Gimelshein 2018, arXiv:1805.02867.
    """
    _check(queries, keys, "info_nce", "queries", "keys")
    _check_weights(weights, len(queries), "info_nce")
    scale = _scale(temperature, queries, "info_nce")
    count = len(queries)
    if positives is None:
        if len(keys) < count:
            raise ShapeError(
                f"info_nce: {count} queries and {len(keys)} keys, so query {len(keys)} has no key of its own. "
                "Pass positives=, the index of each query's positive key."
            )
        positives = torch.arange(count, device=queries.device)
    _check_indices("positives", positives, f"[{count}] or [{count}, P]", count, len(keys), (1, 2))
    chosen = (positives if positives.dim() == 2 else positives[:, None]).long()
    if excluded is not None:
        _check_indices("excluded", excluded, f"[{count}]", count, len(keys), (1,))
        excluded = excluded.long()
    if negatives is not None:
        _check_negatives(negatives, queries)
    # Keys are excluded within the tiles: subtracting a term afterwards loses precision if it is the largest.
    total, _ = LogSumExp.apply(queries, keys, scale, excluded, False, group)  # type: ignore[no-untyped-call]
    if negatives is not None:
        total = torch.logaddexp(total, _paired(queries, negatives, scale, total.dtype).logsumexp(1))
    valid = chosen >= 0
    numbers = valid.sum(1)
    logits = _paired(queries, keys[chosen.clamp(min=0)], scale, total.dtype)
    losses = total - (logits * valid).sum(1) / numbers.clamp(min=1)
    takes_part = (numbers > 0).to(losses.dtype)
    return _reduced(losses, takes_part if weights is None else weights * takes_part, reduction, "info_nce")


@uncast
def clip_loss(
    left: Tensor,
    right: Tensor,
    *,
    temperature: float | Tensor = 0.07,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return CLIP's symmetric loss, the mean of :func:`info_nce` from left to right and from right to left.

    Both directions share one pass over the tiles, forward and backward. The matrix of logits is never stored.

    Args:
        left: one row per pair, such as images. Shape ``[B, d]``, floating; normalize it for cosine similarities.
        right: the other half of each pair. Shape ``[B, d]``, the dtype of ``left``.
        temperature: divides the logits, > 0. A tensor of shape ``[]`` gets its gradient; CLIP's
            ``logit_scale`` is ``temperature=1 / logit_scale.exp()``.
        weights: a weight for each pair. Shape ``[B]``. The mean is then the weighted mean.
        reduction: ``"mean"`` over pairs, ``"sum"``, or ``"none"`` for one loss per pair.
        group: ranks that share the work, as in :func:`info_nce`.

    Returns:
        the loss, shape ``[]`` (or ``[B]``), in float32 for 16-bit inputs. It cannot be differentiated twice.

    Raises:
        ShapeError: shapes do not fit.
        OptionError: the temperature is not positive, or the reduction is unknown.

    Example:
        >>> left = torch.eye(2)
        >>> clip_loss(left, left, temperature=1.0)  # log(e + 1) - 1, in both directions
        tensor(0.3133)

    Sources:
        Radford et al. 2021, arXiv:2103.00020, figure 3.
    """
    _check(left, right, "clip_loss", "left", "right", paired=True)
    _check_weights(weights, len(left), "clip_loss")
    scale = _scale(temperature, left, "clip_loss")
    by_row, by_column = LogSumExp.apply(left, right, scale, None, True, group)  # type: ignore[no-untyped-call]
    losses = (by_row + by_column) / 2 - _paired(left, right[:, None], scale, by_row.dtype)[:, 0]
    return _reduced(losses, weights, reduction, "clip_loss")


@uncast
def siglip_loss(
    left: Tensor,
    right: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    bias: float | Tensor = -10.0,
    weights: Tensor | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return SigLIP's loss: a binary classification of every pair of rows, with no softmax over the batch.

    The loss is ``-log sigmoid(z * (left_i @ right_j / t + b))``, summed over all pairs and divided by the number of
    rows. Here z is 1 on the diagonal and -1 elsewhere. The matrix of logits is never stored.

    Args:
        left: one row per pair. Shape ``[B, d]``, floating; normalize it for cosine similarities.
        right: the other half of each pair. Shape ``[B, d]``, the dtype of ``left``.
        temperature: divides the products, > 0. A tensor of shape ``[]`` gets its gradient.
        bias: added to each logit. A tensor of shape ``[]`` gets its gradient.
        weights: a weight for each row of ``left``. Shape ``[B]``; it gets no gradient. The mean is then the
            weighted mean.
        reduction: ``"mean"`` over rows, or ``"sum"``.
        group: ranks that share the work, as in :func:`info_nce`.

    Returns:
        the loss, shape ``[]``, in float32 for 16-bit inputs. It cannot be differentiated twice.

    Raises:
        ShapeError: shapes do not fit.
        OptionError: the temperature is not positive, or the reduction is unknown.

    Example:
        >>> left = torch.eye(2)
        >>> siglip_loss(left, left, temperature=1.0, bias=0.0)  # (2 log(1 + 1/e) + 2 log 2) / 2
        tensor(1.0064)

    Sources:
        Zhai et al. 2023, arXiv:2303.15343, equation 1 and algorithm 1.
    """
    _check(left, right, "siglip_loss", "left", "right", paired=True)
    _check_weights(weights, len(left), "siglip_loss")
    check_choice("siglip_loss", "reduction", reduction, ("mean", "sum"))
    scale = _scale(temperature, left, "siglip_loss")
    dtype = wide(left.dtype)
    shift = torch.as_tensor(bias, dtype=dtype, device=left.device)
    weight = (
        torch.ones(len(left), dtype=dtype, device=left.device)
        if weights is None
        else weights.detach().to(dtype)
    )
    total: Tensor = PairwiseLogistic.apply(left, right, scale, shift, weight, group)  # type: ignore[no-untyped-call]
    # The tiles add up softplus(s) everywhere. The diagonal needs softplus(-s) = softplus(s) - s.
    own = _paired(left, right[:, None], scale, dtype)[:, 0] + shift
    total = total - (own * weight).sum()
    return total if reduction == "sum" else total / weight.sum()


def _paired(left: Tensor, right: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the logits of each row of ``left`` [B, d] with its own rows of ``right`` [B, N, d]: [B, N]."""
    return torch.einsum("bd,bnd->bn", left, right).to(dtype) * scale


def _scale(temperature: float | Tensor, like: Tensor, who: str) -> Tensor:
    """Return 1 / temperature in the dtype of the logits. Does not read a tensor, which would synchronize."""
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1:
            raise ShapeError(
                f"{who}: temperature has shape {list(temperature.shape)}, but it must be a scalar."
            )
        return temperature.reshape(()).to(like.device, wide(like.dtype)).reciprocal()
    if not temperature > 0:
        raise OptionError(
            f"{who}: temperature is {temperature}; logits are divided by it, so it has to be positive."
        )
    return torch.tensor(1 / temperature, dtype=wide(like.dtype), device=like.device)


def _check(left: Tensor, right: Tensor, who: str, first: str, second: str, *, paired: bool = False) -> None:
    fits = left.dim() == right.dim() == 2 and left.shape[1] == right.shape[1] and left.dtype == right.dtype
    if not fits or not left.is_floating_point() or (paired and len(left) != len(right)):
        raise ShapeError(
            f"{who}: {first} is {list(left.shape)} of {left.dtype}, {second} is {list(right.shape)} of "
            f"{right.dtype}. Both must be matrices with the same floating dtype and "
            f"{'the same shape' if paired else 'equal row length'}."
        )


def _check_indices(
    name: str, indices: Tensor, shape: str, queries: int, keys: int, dims: tuple[int, ...]
) -> None:
    if indices.dtype == torch.bool:
        raise ShapeError(
            f"info_nce: {name} is a mask of shape {list(indices.shape)}; it must hold indices of keys, of shape "
            f"{shape}. To get up to P indices for each row of a mask, padded with -1: torch.where(mask, "
            "torch.arange(mask.shape[1], device=mask.device), -1).topk(P).values."
        )
    if indices.dtype not in _INDICES or indices.dim() not in dims or len(indices) != queries:
        raise ShapeError(
            f"info_nce: {name} has shape {list(indices.shape)} and type {indices.dtype}; it must hold "
            f"indices, of shape {shape}."
        )
    # On other devices, reading the indices would synchronize.
    if indices.is_cpu and indices.numel() and not -1 <= indices.min() <= indices.max() < keys:
        raise OptionError(
            f"info_nce: {name} holds indices from {indices.min()} to {indices.max()}, but there are {keys} keys. "
            f"Pass indices from 0 to {keys - 1}, or -1 for none."
        )


def _check_negatives(negatives: Tensor, queries: Tensor) -> None:
    count, size = queries.shape
    fits = negatives.dim() == 3 and (len(negatives), negatives.shape[2]) == (count, size)
    if not fits or negatives.dtype != queries.dtype:
        raise ShapeError(
            f"info_nce: negatives is {list(negatives.shape)} of {negatives.dtype}; it must be [{count}, N, {size}] "
            f"of {queries.dtype}: N keys for each query. Append negatives of all queries to the keys: "
            "torch.cat([keys, negatives])."
        )


def _check_weights(weights: Tensor | None, count: int, who: str) -> None:
    if weights is not None and weights.shape != (count,):
        raise ShapeError(
            f"{who}: weights has shape {list(weights.shape)}; it must hold one weight for each row, of shape "
            f"[{count}]."
        )


def _reduced(losses: Tensor, weights: Tensor | None, reduction: str, who: str) -> Tensor:
    check_choice(who, "reduction", reduction, ("mean", "sum", "none"))
    weighted = losses if weights is None else losses * weights
    if reduction == "none":
        return weighted
    if reduction == "sum":
        return weighted.sum()
    return weighted.mean() if weights is None else weighted.sum() / weights.sum()
