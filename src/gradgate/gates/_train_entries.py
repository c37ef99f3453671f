"""Trains some rows or entries of a parameter, and leaves the others bit for bit unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradgate.errors import OptionError, ShapeError
from gradgate.gates._optimizer_proxy import Entries, has_entries, restrict, unrestrict
from gradgate.gates._parameters import Holding, on_gradient
from gradgate.torch_compat import is_dtensor


class TrainedOnly:
    """A handle on a parameter with some trained entries. Made by :func:`train_rows` and :func:`train_mask`."""

    def __init__(self, parameter: Tensor, entries: Entries, module: nn.Module | None = None) -> None:
        self._parameter: Tensor | None = parameter
        self._holding = Holding([] if module is None else [module], "train_rows", [parameter])
        self._entries = entries
        restrict(parameter, entries)
        if parameter.grad is not None:
            parameter.grad = entries.masked(parameter.grad)
        self._hook = on_gradient(parameter, entries.masked)

    def __repr__(self) -> str:
        if self._parameter is None:
            return "TrainedOnly(removed)"
        return f"TrainedOnly({self._entries} of {list(self._parameter.shape)})"

    def remove(self) -> None:
        """Train the whole parameter again. The optimizer's state for the other entries starts from scratch.

        Under Adam, their first steps may be larger than usual, because Adam counts steps for the whole parameter.
        """
        if self._parameter is not None:
            self._hook.remove()
            unrestrict(self._parameter)
            self._holding.release()
            self._parameter = None

    def __enter__(self) -> TrainedOnly:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def train_rows(embedding: nn.Module | Tensor, ids: Tensor | Sequence[int]) -> TrainedOnly:
    """Train these rows of an embedding; the others stay bit for bit the same.

    The usual case is new tokens in a pretrained vocabulary. The gradient of the other rows becomes zero, so norms
    and clipping count only the trained rows. The optimizer sees only the trained rows: neither momentum nor weight
    decay changes the others, and its state is only as large as these rows. The parameter remains the same object.
    If output weights are tied to the embedding, the same rows are trained there. An optimizer that uses whole
    matrices (Muon, Adafactor) sees the rows as a matrix of their own.

    Args:
        embedding: a module whose ``weight`` has one row for each id (``nn.Embedding``, ``nn.EmbeddingBag``,
            ``nn.Linear``), or such a parameter itself. Its optimizer may be created before or after this call.
        ids: the indices of the rows, each once. Shape ``[n]``.

    Returns:
        A handle: ``remove()`` trains all rows again. As a context manager, it does so at the end of the block.

    Raises:
        OptionError: an id is out of range or given twice, or there is none; the embedding renormalizes rows in its
            forward pass (``max_norm``); entries of this parameter are chosen already. At the next step of an
            optimizer, if it owns another parameter that has become the module's weight.

    Example:
        >>> embedding = torch.nn.Embedding(5, 2)
        >>> before = embedding.weight.detach().clone()
        >>> handle = train_rows(embedding, [3, 4])
        >>> optimizer = torch.optim.AdamW(embedding.parameters(), lr=0.1, weight_decay=0.1)
        >>> embedding(torch.arange(5)).sum().backward()
        >>> optimizer.step()
        >>> (embedding.weight != before).any(1)
        tensor([False, False, False,  True,  True])
        >>> optimizer.state[embedding.weight]["exp_avg"].shape
        torch.Size([2, 2])
    """
    parameter = _weight(embedding, "train_rows")
    if getattr(embedding, "max_norm", None) is not None:
        raise OptionError(
            "train_rows: the embedding has max_norm, so its forward pass writes into all rows that it reads. "
            "Set max_norm=None, and clip the trained rows after the step."
        )
    if not parameter.dim():
        raise ShapeError("train_rows: the parameter is a single number. Pass one that has rows.")
    module = embedding if isinstance(embedding, nn.Module) else None
    return TrainedOnly(parameter, Entries(_checked_ids(ids, len(parameter))), module)


def train_mask(parameter: Tensor, mask: Tensor) -> TrainedOnly:
    """Train the entries of a parameter where a mask is True; the others stay bit for bit the same.

    Works as :func:`train_rows` does. The optimizer sees the chosen entries as one vector. This suits optimizers
    that treat entries separately (SGD, Adam, AdamW, RMSprop, Adagrad), but not optimizers that use whole matrices
    (Muon, Adafactor).

    Args:
        parameter: a leaf that requires gradient now or later.
        mask: bool, of the parameter's shape. It is copied.

    Returns:
        A handle: ``remove()`` trains all entries again. As a context manager, it does so at the end of the block.

    Raises:
        ShapeError: the mask has another shape.
        OptionError: the mask is not bool, or is True nowhere; entries of this parameter are chosen already.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = torch.optim.SGD([weight], lr=0.5, weight_decay=1.0)
        >>> with train_mask(weight, torch.tensor([True, False, True])):
        ...     weight.sum().backward()
        ...     optimizer.step()
        >>> weight.tolist()
        [0.0, 1.0, 0.0]
    """
    parameter = _weight(parameter, "train_mask")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = f"of {mask.dtype}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise OptionError(f"train_mask: the mask is {found}. Give a bool tensor: mask != 0.")
    if mask.shape != parameter.shape:
        raise ShapeError(
            f"train_mask: the mask has shape {list(mask.shape)}, but the parameter has shape "
            f"{list(parameter.shape)}. Expand the mask: mask.expand_as(parameter)."
        )
    if not mask.any():
        raise OptionError(
            "train_mask: the mask is True nowhere, so nothing would be trained. Use frozen(...)."
        )
    return TrainedOnly(parameter, Entries(mask.detach().clone()))


def _weight(given: nn.Module | Tensor, verb: str) -> Tensor:
    parameter = getattr(given, "weight", None) if isinstance(given, nn.Module) else given
    if not isinstance(parameter, Tensor) or not parameter.is_leaf:
        what = "a tensor with a graph" if isinstance(parameter, Tensor) else f"a {type(given).__name__}"
        raise OptionError(
            f"{verb}: got {what}, which no optimizer can update. Pass a parameter, or a module with a "
            "parameter as its weight."
        )
    if not parameter.is_floating_point() and not parameter.is_complex():
        raise OptionError(
            f"{verb}: the parameter is {parameter.dtype}, which has no gradient. Pass a floating-point parameter."
        )
    if is_dtensor(parameter):
        raise OptionError(
            f"{verb}: the parameter is sharded, so each rank's optimizer sees only its own shard. Choose entries "
            "of a parameter that is whole on each rank."
        )
    if has_entries(parameter):
        raise OptionError(
            f"{verb}: entries of this parameter are chosen already, perhaps through a weight that is tied to it. "
            "Call remove() on the handle of the first call, or choose all entries in one call."
        )
    return parameter


def _checked_ids(ids: Tensor | Sequence[int], total: int) -> Tensor:
    given = ids if isinstance(ids, (Tensor, int)) else list(ids)
    chosen = given.detach().clone() if isinstance(given, Tensor) else torch.tensor(given)
    if (chosen.dtype.is_floating_point and chosen.numel()) or chosen.dtype == torch.bool or chosen.dim() != 1:
        raise OptionError(
            f"train_rows: ids is {chosen.dtype} of shape {list(chosen.shape)}. Give the indices of the rows: "
            "[7, 8], or mask.nonzero()[:, 0]."
        )
    if not chosen.numel():
        raise OptionError("train_rows: no id is given, so nothing would be trained. Use frozen(...).")
    outside = chosen[(chosen < 0) | (chosen >= total)]
    if outside.numel():
        raise OptionError(
            f"train_rows: {_some(outside)} out of range: there are rows 0 to {total - 1}. For new tokens, make the "
            "embedding larger first."
        )
    values, times = chosen.unique(return_counts=True)
    if values.numel() < chosen.numel():
        raise OptionError(
            f"train_rows: {_some(values[times > 1])} given twice. Give each row once: set(ids)."
        )
    rows: Tensor = values.long()
    return rows


def _some(ids: Tensor) -> str:
    shown = ", ".join(map(str, ids[:3].tolist()))
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{'row' if len(ids) == 1 else 'rows'} {shown}{more} {'is' if len(ids) == 1 else 'are'}"
