"""Trains some rows of a parameter, and leaves the others bit for bit unchanged.

An optimizer also moves rows whose gradient is zero: by momentum, weight decay or Adam's averages. It must therefore
not see them. During a step, a proxy replaces the optimizer. The proxy's groups hold the trained rows as separate
parameters, which are written back afterwards. The optimizer's own groups never change, so a step that raises leaves
nothing to repair, and the state is only as large as these rows. A parameter of the rows in the module itself would
need no proxy, but would change the names in ``state_dict()``, and every module that is tied to the table would have
to be replaced, too.
"""

from __future__ import annotations

import copy
import functools
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gradgate.errors import OptionError, ShapeError
from gradgate.gates._parameters import GradientHooks
from gradgate.ownership import trained_rows
from gradgate.torch_compat import is_dtensor, move_hook, sparse_tensor, uncompiled

_KEY = (
    "gradgate_rows"  # in an optimizer's state of a parameter: the checksum of the rows that the state is of
)


class _Rows:
    """The ids of some rows, in ascending order."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids
        self.checksum = zlib.crc32(str(ids.tolist()).encode())

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, x: Tensor) -> Tensor:
        """Return these rows of a tensor, which may be sparse."""
        return x.index_select(0, self._on(x))

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write these rows of a tensor."""
        x.index_copy_(0, self._on(x), values)

    def masked(self, gradient: Tensor) -> Tensor:
        """Return the gradient with zeros in all other rows, in the same layout, as torch requires of hooks."""
        if not gradient.is_sparse:
            return torch.zeros_like(gradient).index_copy_(0, self._on(gradient), self.take(gradient))
        gradient = gradient.coalesce()
        indices, values = gradient.indices(), gradient.values()
        kept = torch.isin(indices[0], self._on(gradient))
        return sparse_tensor(indices[:, kept], values[kept], gradient.shape)

    def state_of(self, parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Return an optimizer's state of these rows, from the state of these rows or of the whole parameter."""
        whole = {k: v for k, v in state.items() if isinstance(v, Tensor) and v.dim()}
        if state.get(_KEY) == self.checksum:
            return {key: value for key, value in state.items() if key != _KEY}
        for key, value in whole.items():
            if value.shape != parameter.shape:
                raise OptionError(
                    f"train_rows: the optimizer's {key}, of shape {list(value.shape)}, is not the state of the "
                    f"chosen rows, which are {len(self)} of the {len(parameter)} rows of the parameter. Choose the "
                    "same rows as when the state was saved, choose them before the first step, or drop the state: "
                    "del optimizer.state[parameter]."
                )
        return {**state, **{key: self.take(value) for key, value in whole.items()}}

    def _on(self, x: Tensor) -> Tensor:
        self._ids = self._ids.to(x.device)  # the model may have moved since
        return self._ids


# The hook that swaps in the proxy, for each optimizer that has stepped with one.
_hooks: weakref.WeakKeyDictionary[Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()


class TrainedRows:
    """A handle on a parameter of which some rows are trained. Made by :func:`train_rows`."""

    def __init__(self, parameter: Tensor, rows: _Rows, modules: Sequence[nn.Module]) -> None:
        self._parameter: Tensor | None = parameter
        self._rows = rows
        trained_rows[parameter] = rows
        _order_hooks()
        if parameter.grad is not None:
            parameter.grad = rows.masked(parameter.grad)
        self._hooks = GradientHooks("train_rows", rows.masked, [parameter], modules)

    def __repr__(self) -> str:
        if self._parameter is None:
            return "TrainedRows(removed)"
        return f"TrainedRows({len(self._rows)} rows of {list(self._parameter.shape)})"

    def remove(self) -> None:
        """Train all rows again. The optimizer's state for this parameter starts from scratch."""
        if self._parameter is not None:
            self._hooks.remove()
            del trained_rows[self._parameter]
            for optimizer in list(_hooks):
                optimizer.state.pop(self._parameter, None)
            self._parameter = None

    def __enter__(self) -> TrainedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def train_rows(embedding: nn.Module | Tensor, ids: Tensor | Sequence[int]) -> TrainedRows:
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
            forward pass (``max_norm``); rows of this parameter are chosen already. At the next step of an
            optimizer, if it owns another parameter that has become the module's weight, or holds state of other
            rows.

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
    parameter = _weight(embedding)
    if getattr(embedding, "max_norm", None) is not None:
        raise OptionError(
            "train_rows: the embedding has max_norm, so its forward pass writes into all rows that it reads. "
            "Set max_norm=None, and clip the trained rows after the step."
        )
    if not parameter.dim():
        raise ShapeError("train_rows: the parameter is a single number. Pass one that has rows.")
    modules = [embedding] if isinstance(embedding, nn.Module) else []
    return TrainedRows(parameter, _Rows(_checked_ids(ids, len(parameter))), modules)


def _weight(given: nn.Module | Tensor) -> Tensor:
    parameter = getattr(given, "weight", None) if isinstance(given, nn.Module) else given
    if not isinstance(parameter, Tensor) or not parameter.is_leaf:
        what = "a tensor with a graph" if isinstance(parameter, Tensor) else f"a {type(given).__name__}"
        raise OptionError(
            f"train_rows: got {what}, which no optimizer can update. Pass a parameter, or a module with a "
            "parameter as its weight."
        )
    if not parameter.is_floating_point() and not parameter.is_complex():
        raise OptionError(
            f"train_rows: the parameter is {parameter.dtype}, which has no gradient. Pass a floating-point "
            "parameter."
        )
    if is_dtensor(parameter):
        raise OptionError(
            "train_rows: the parameter is sharded, so each rank's optimizer sees only its own shard. Choose rows "
            "of a parameter that is whole on each rank."
        )
    if parameter in trained_rows:
        raise OptionError(
            "train_rows: rows of this parameter are chosen already, perhaps through a weight that is tied to it. "
            "Call remove() on the handle of the first call, or choose all rows in one call."
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


class _Proxy:
    """Runs one step of an optimizer on a copy that has the trained rows as parameters."""

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        self.optimizer = optimizer
        self._values = {p: nn.Parameter(trained_rows[p].take(p.detach())) for p in parameters}
        self.copy = object.__new__(type(optimizer))
        self.copy.__dict__.update(optimizer.__dict__, proxy=self)
        self.copy.param_groups = [
            {**group, "params": [self._values.get(parameter, parameter) for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.copy.state = copy.copy(optimizer.state)
        for parameter, values in self._values.items():
            state = self.copy.state.pop(parameter, None)
            if state:
                self.copy.state[values] = trained_rows[parameter].state_of(parameter, state)
        self.take_gradients()

    def take_gradients(self) -> None:
        for parameter, values in self._values.items():
            values.grad = None
            if parameter.grad is not None:
                values.grad_dtype = parameter.grad_dtype
                values.grad = trained_rows[parameter].take(parameter.grad)

    @torch.no_grad()
    def write_back(self) -> None:
        for parameter, values in self._values.items():
            trained_rows[parameter].put(parameter, values)

    def closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that writes the rows back, runs the user's closure, and takes the new gradients."""

        def called() -> Any:
            self.write_back()
            result = closure()
            self.take_gradients()
            return result

        return called

    def finish(self) -> None:
        """Copy the changes of the step to the optimizer."""
        self.write_back()
        for parameter, values in self._values.items():
            if state := self.copy.state.pop(values, None):
                self.copy.state[parameter] = {**state, _KEY: trained_rows[parameter].checksum}
        self.optimizer.state.update(self.copy.state)
        for group, changed in zip(self.optimizer.param_groups, self.copy.param_groups, strict=True):
            group.update({key: value for key, value in changed.items() if key != "params"})
        kept = {"param_groups", "state", "proxy"}
        self.optimizer.__dict__.update({k: v for k, v in self.copy.__dict__.items() if k not in kept})


@functools.cache
def _order_hooks() -> RemovableHandle:
    return register_optimizer_step_pre_hook(_before_hooks)


@uncompiled
def _before_hooks(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let the hook that swaps in the proxy run last, so that all other hooks see the optimizer itself."""
    del args, kwargs
    if not _chosen_in(optimizer):
        return
    if optimizer not in _hooks:
        _hooks[optimizer] = optimizer.register_step_pre_hook(_replace)
        after = optimizer.register_step_post_hook(_finish)
        # Moved to the front, so that other hooks see the result of the step.
        move_hook(after, last=False)
    move_hook(_hooks[optimizer], last=True)


def _chosen_in(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters with chosen rows that an optimizer steps itself, not through an inner optimizer."""
    if not trained_rows:
        return []
    chosen = {id(parameter): parameter for parameter in trained_rows}
    inner = [value for value in vars(optimizer).values() if isinstance(value, Optimizer)]
    if inner and any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        return []  # the inner optimizer of each rank updates its own part of all parameters
    delegated = _ids(inner)
    return [chosen[key] for key in _ids([optimizer]) if key in chosen and key not in delegated]


def _ids(optimizers: Iterable[Optimizer]) -> dict[int, None]:
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return dict.fromkeys(id(parameter) for group in groups for parameter in group["params"])


@uncompiled
def _replace(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of the optimizer's step with a proxy in place of ``self``; None to keep them."""
    parameters = _chosen_in(optimizer)
    _check_lists(optimizer, parameters)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not any(parameter.grad is not None or closure is not None for parameter in parameters):
        return None
    proxy = _Proxy(optimizer, parameters)
    if closure is not None:
        closure = proxy.closure(closure)
        args = (optimizer, closure, *args[2:]) if len(args) > 1 else args
        kwargs = kwargs if len(args) > 1 else {**kwargs, "closure": closure}
    return (proxy.copy, *args[1:]), kwargs


@uncompiled
def _finish(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    del kwargs
    if args[0] is not optimizer:
        args[0].__dict__.pop("proxy").finish()


def _check_lists(optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    ids = set(map(id, parameters))
    for name, value in vars(optimizer).items():
        if isinstance(value, list) and any(id(item) in ids for item in value):
            raise OptionError(
                f"train_rows: {type(optimizer).__name__} keeps parameters in a separate list, {name}, and would "
                "step rows that are not chosen. Use an optimizer that reads its groups, as Adam does."
            )
