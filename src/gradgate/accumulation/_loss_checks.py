"""Checks the losses of an accumulator's first windows, where most mistakes show up: refuses them, or warns once.

Each check asks whether the losses of a window, weighted by their counts, add up to the loss of the whole batch: the
count and the division (:class:`LossChecks`), weights of classes, batch norms, mixed samples, and clipping hooks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradgate.accumulation._counts import (
    UPDATE,
    Caller,
    Count,
    Counted,
    Reduction,
    check_reduction,
    count_in_graph,
    counted_terms,
    described_functions,
    divided_by,
    functions_in,
    reduced,
    terms_of,
)
from gradgate.accumulation._settings import Models
from gradgate.autograd_graph import (
    WEIGHT_ROUNDING,
    Graph,
    NotUnderstoodError,
    compared_items,
    finds_each_item,
    hidden_parameter,
    inputs_of,
    loss_over_items,
    mixing,
    only_input,
    ops,
    reduced_shape,
    reduction_of,
    through,
    walk,
    without_smoothing,
)
from gradgate.errors import (
    BatchNormWarning,
    CountError,
    CountWarning,
    CoupledLossWarning,
    DividedTwiceWarning,
    GraphError,
    ShapeError,
)
from gradgate.torch_compat import dispatch_modes, leaf_hooks, tensor_version
from gradgate.user_warnings import warn

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CALLS = 16  # backward calls of each loss that are checked
_TERMS = 4  # terms of a loss that are searched for mixed samples
_ROUNDING = 1e-3  # relative, of a norm that was clipped
_COUNTED = {
    "weight": "weight[y].sum()",
    "pos_weight": "y.numel()",
}  # counts of a mean with weights of classes


class LossChecks:
    """Checks the first backward calls of each loss of an accumulator or trainer.

    Later, a loss is checked again only when its graph ends in another operation, or changes its size. Autograd
    numbers the nodes that a thread creates, so a graph's size is the difference of two numbers.
    """

    def __init__(self, caller: Caller = UPDATE) -> None:
        self._caller = caller
        self.node_number = 0  # at the end of the last backward pass
        # The size and the last operation of the graph that was walked last, for each loss whose first calls have
        # all been checked, and by whether the window already held that loss.
        self.known: dict[tuple[str, bool], tuple[Any, ...]] = {}
        self.settled: set[str] = set()  # the losses whose first calls have all been checked
        self._calls: dict[str, int] = {}
        # For each loss in this window, and each of its terms: the count passed, and the count that its graph shows.
        self._counted: dict[str, Counted] = {}
        self.clips = Clips()
        self._weights = ClassWeights(caller)
        self._contradicted = False
        self._checked_for_pairs: set[str] = set()
        self._normalized: set[str] = set()  # the losses with a batch norm, which has its own warning

    def check(
        self,
        name: str,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        micro_batches: int,
        later: bool,
        *,
        left_out: bool,
        batch_norms: BatchNorms | None = None,
        traces: bool = False,
    ) -> None:
        """Check one loss before its backward pass; raise or warn about what is wrong.

        Args:
            name: the name of the loss.
            loss: the loss.
            count: the number of its items.
            reduction: what the caller says of the loss.
            micro_batches: the window's number of micro-batches, if known.
            later: whether the window has already had a call for this loss.
            left_out: whether ``count`` was read from the graph.
            batch_norms: checks an update's batch norms; None in trainers, which make the graphs themselves.
            traces: whether gradients may be traced through the graph, which takes memory and needs saved weights.
        """
        if batch_norms is not None:
            refuse_hidden_parameters(loss)
            if not later:
                check_reduction(loss, reduction)
        if name in self.settled:
            return
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._calls[name] == _CALLS:
            self.settled.add(name)
        if not later:
            if batch_norms is not None:
                _warn_if_spread(loss, micro_batches)
            self._warn_if_divided(loss, micro_batches)
        else:
            if batch_norms is not None and batch_norms.warn_once(name, loss):
                self._normalized.add(name)
            if name not in self._checked_for_pairs:
                if batch_norms is not None:
                    self.clips.check_gates(loss)
                warned = self._warn_if_coupled(loss) or self._warn_if_function_of_mean(loss, count)
                warned = warned or (traces and name not in self._normalized and warn_if_mixed(loss))
                if warned or not _is_one(count):  # a single sample has no pairs
                    self._checked_for_pairs.add(name)
        if left_out:
            self._weights.check(name, loss, later)
        if not self._contradicted and reduction == "mean":
            self._warn_if_counted_otherwise(name, loss, count, later)

    def _warn_if_counted_otherwise(self, name: str, loss: Tensor, count: Count, later: bool) -> None:
        """Warn once if the counts in a window are not proportional to those that the losses' graphs show."""
        if not later:
            self._counted.pop(name, None)
        earlier = self._counted.setdefault(name, {})
        for term, found in counted_terms(loss, count).items():
            first = earlier.setdefault(term, found)
            (passed, items), (first_passed, first_items) = found, first
            # Only proportions matter: if sequences have equal length, counting sequences is as good as counting
            # tokens.
            if math.isclose(passed * first_items, first_passed * items, rel_tol=WEIGHT_ROUNDING):
                continue
            self._contradicted = True
            advice = (
                "Pass the number of items that took part in the loss: count=(labels != -100).sum(), for the labels "
                "that the loss receives."
            )
            if term:  # one count cannot be right for terms with different numbers of items
                advice = (
                    f"Pass each term with its own count and name{self._caller.loop}: "
                    "update.backward(term, count=n, name='...')."
                )
            else:
                _emit(lambda events: events.Miscounted((), *found, *first, _is_proved(loss)))  # noqa: B023
            warn(
                f"{self._caller.name}: count is {passed:.10g} for a mean over {items:.10g} items (read from the "
                f"graph), but an earlier loss in this window had count {first_passed:.10g} for {first_items:.10g} "
                "items. These counts are not proportional, so the micro-batches get the wrong weights. "
                f"{advice}",
                CountWarning,
            )
            return

    def _warn_if_divided(self, loss: Tensor, micro_batches: int) -> None:
        """Warn about the ``/ N`` that an ordinary accumulation loop needs and an exact window does not."""
        divisor = divided_by(loss) if micro_batches > 1 else None
        if divisor is None or not math.isclose(divisor, micro_batches):
            return
        _emit(lambda events: events.DividedTwice((), micro_batches))
        warn(
            f"{self._caller.name}: loss is a mean divided by {micro_batches}, the number of micro-batches of this "
            f"window. The update divides once, by the sum of all counts, so the gradient will be {micro_batches} "
            "times too small. Pass the loss without the division.",
            DividedTwiceWarning,
        )

    def _warn_if_coupled(self, loss: Tensor) -> bool:
        """Warn if a loss compares samples, by products or distances. Return whether it does."""
        compared = compared_items(loss.grad_fn)
        if compared is None:
            return False
        node, mixed = compared
        kind = "in batch" if finds_each_item(node) else "pairs"
        _emit(lambda events: events.Combined((), kind, frozenset(), ()))
        warn(
            f"{self._caller.name}: this loss compares the items of a micro-batch with one another: {mixed}. A "
            "split loses the pairs between micro-batches, so no split gives the gradient of the whole batch. "
            f"Compute the loss over the whole window{self._caller.loop}: "
            "update.backward_coupled(encode, micro_batches, loss_fn).",
            CoupledLossWarning,
        )
        return True

    def _warn_if_function_of_mean(self, loss: Tensor, count: Count) -> bool:
        """Warn if a loss is a function of a mean, such as ``mse_loss(...).sqrt()``. Return whether it is.

        A function of a single item is allowed, and so is a sum with one function per item.
        """
        functions = functions_in(loss)
        if not functions or (not isinstance(count, Tensor) and count == len(functions)):
            return False
        warn(f"{self._caller.name}: {described_functions(functions, self._caller)}", CoupledLossWarning)
        return True


def _emit(event: Callable[[Any], Any]) -> None:
    """Emit ``event(gradgate.events)`` if a checker is watching."""
    from gradgate import events  # slow to import, and rarely needed

    events.emit(lambda: event(events))


def _is_proved(loss: Tensor) -> bool:
    """Return whether the graph of a mean proves its count, so that ``count=`` may be left out."""
    try:
        count_in_graph(loss)
    except NotUnderstoodError:
        return False
    return True


def _warn_if_spread(loss: Tensor, micro_batches: int) -> None:
    """Warn about a sum divided by more than its number of items, for example by ``num_items_in_batch``."""
    found = _spread(loss) if micro_batches > 1 else None
    if found is not None:
        items, divisor = found
        warn(
            f"backward: loss is a sum over {items} items divided by {divisor:.10g}, so it is not their mean. "
            "The update divides once, by the sum of all counts, so the gradient will be too small. Pass the sum "
            "without the division: update.backward(loss, count=n, reduction='sum').",
            DividedTwiceWarning,
        )


def _spread(loss: Tensor) -> tuple[int, float] | None:
    """Return a summed torch loss's number of items and its divisor, or None unless the divisor is larger."""
    node = through(loss.grad_fn, ops.RESHAPES)
    inputs = None if node is None else inputs_of(node)
    if not loss.is_cpu or inputs is None or inputs[0].op != "div" or inputs[0].factor is None:
        return None
    summed = without_smoothing(inputs[0].node)
    if reduction_of(summed) != "sum":
        return None
    losses = only_input(summed) if summed.name() == ops.SUM else summed
    if getattr(losses, "_saved_weight", None) is not None:
        return None  # the weights of the items may add up to more than their number
    items, divisor = math.prod(reduced_shape(summed)), float(inputs[0].factor)
    return (items, divisor) if divisor > items else None


def check_scalar(loss: Tensor) -> None:
    """Raise ShapeError unless ``loss`` is a floating scalar."""
    if not isinstance(loss, Tensor):
        raise ShapeError(
            f"backward: loss is a {type(loss).__name__}, but it must be a tensor with a graph. Pass the loss "
            "itself, not loss.item(); if it is in a tuple, pass that element."
        )
    if loss.numel() != 1:
        raise ShapeError(
            f"backward: loss has shape {list(loss.shape)}, but it must be a scalar. Pass loss.mean() and "
            f"count={loss.numel()}, or loss.sum() with reduction='sum'."
        )
    if not loss.is_floating_point():
        raise ShapeError(
            f"backward: loss is {loss.dtype}, but it must be a real floating-point dtype. For a complex loss, "
            "pass loss.abs(); compute integer losses in floating point."
        )


def refuse_hidden_parameters(loss: Tensor) -> None:
    """Raise GraphError if a graph hides parameters from autograd, which would silently skip them."""
    hidden = hidden_parameter(Graph(loss))
    if hidden is None:
        return
    if hidden.node == ops.REENTRANT_CHECKPOINT:
        raise GraphError(
            "backward: the graph holds a reentrant checkpoint, which hides its parameters from autograd: "
            "they would get no gradient. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    raise GraphError(
        f"backward: the graph holds {hidden.node}, which runs its own backward pass through {hidden.module} "
        f"and hides its parameters ('{hidden.path}') from autograd: they would get no gradient, or a gradient "
        "outside the update. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) instead."
    )


def _is_one(count: Count) -> bool:
    """Return whether a loss has a single item. A count on a device is not read."""
    return (not isinstance(count, Tensor) or count.is_cpu) and float(count) == 1


class ClassWeights:
    """Compares the weights in the losses of a window whose counts were left out."""

    def __init__(self, caller: Caller = UPDATE) -> None:
        self._caller = caller
        # The first weight in this window, by loss and by the weight's name, with its version and a copy.
        self._first: dict[tuple[str, str], tuple[Tensor, int, Tensor]] = {}

    def check(self, name: str, loss: Tensor, later: bool) -> None:
        """Raise CountError if a loss has other weights than the window's first one.

        The same weights may be new tensors, as with ``weight.to(device)``. Comparing those synchronizes.
        """
        node = loss_over_items(reduced(loss))
        for kind in _COUNTED:
            weight: Tensor | None = getattr(node, f"_saved_{kind}", None)
            if weight is None or weight.is_meta:
                continue
            version = tensor_version.use(weight)
            if not later or (name, kind) not in self._first:
                self._first[name, kind] = weight, version, weight.detach().clone()
                continue
            # The kept tensor holds its memory, so its address is not reused.
            first, first_version, values = self._first[name, kind]
            if weight.data_ptr() == first.data_ptr() and version == first_version:
                continue
            same = weight.shape == values.shape
            if not (same and torch.allclose(weight, values, rtol=WEIGHT_ROUNDING, atol=0)):
                raise CountError(
                    f"{self._caller.name}: count is missing, and this loss has {kind}=[{_row(weight)}], while an "
                    f"earlier loss in this window had {kind}=[{_row(values)}]. Weights computed from each "
                    "micro-batch's labels do not give the loss of the whole batch. Compute them once, from the "
                    "labels of the whole window or data set. If each micro-batch should have its own weights, pass "
                    "the count: "
                    f"count={_COUNTED[kind]}."
                )


def _row(weight: Tensor) -> str:
    values = [f"{value:.4g}" for value in weight.flatten()[:3].tolist()]
    return ", ".join([*values, "..."] if weight.numel() > 3 else values)


class BatchNorms:
    """Warns about the batch norms that run in an accumulator's windows.

    A batch norm in training mode normalizes each micro-batch by that micro-batch's own mean and variance. This
    couples the samples of a micro-batch, so no split of a batch gives the gradient of the whole batch.

    Without ``models``, batch norms are found in the graph of a loss, and messages cannot name them.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._checked: set[str] = set()

    def _found(self) -> list[Any]:
        norms: list[Any] = [module for module in self._models if isinstance(module, _BATCH_NORMS)]
        return [norm for norm in norms if norm.running_mean is None or not is_lazy(norm.running_mean)]

    def warn_once(self, name: str, loss: Tensor) -> bool:
        """Search the graph of a loss, once, and warn about batch norms that saw only part of the window.

        Returns whether this call found a batch norm.
        """
        if name in self._checked:
            return False
        self._checked.add(name)
        found = [node for node, _ in walk(loss.grad_fn) if _normalizes(node)]
        if not found:
            return False
        compiled = [node for node in found if "CompiledFunction" in node.name()]
        # A compiled graph hides its norms, so every norm in training mode is reported.
        seen = {tensor.data_ptr() for node in found for tensor in _of_node(node)}
        ran = [norm for norm in self._found() if norm.training and (compiled or seen & set(_pointers(norm)))]
        if not ran and len(compiled) == len(found):
            return False
        names = ", ".join(self._models.name(module) for module in ran[:3]) or "a batch norm"
        more = f" and {len(ran) - 3} more" if len(ran) > 3 else ""
        warn(
            f"{names}{more}: in training mode, a batch norm normalizes each micro-batch by its own mean and "
            "variance, so no split gives the gradient of the whole batch. Put it in eval() mode, use a norm "
            "without batch statistics (GroupNorm, LayerNorm), or make micro-batches as large as memory "
            "allows.",
            BatchNormWarning,
        )
        return True


def _normalizes(node: Any) -> bool:
    """Return whether a node is a batch norm in training mode, or a compiled graph, which may hide one."""
    kind = node.name()
    return ("BatchNorm" in kind and getattr(node, "_saved_training", True)) or "CompiledFunction" in kind


def _of_node(node: Any) -> Iterator[Tensor]:
    """Yield the running mean and the weight that a batch norm's node saved; they identify its module."""
    for name in ("_saved_running_mean", "_saved_weight"):
        saved = getattr(node, name, None)
        if isinstance(saved, Tensor):
            yield saved


def _pointers(module: Any) -> Iterator[int]:
    for tensor in (module.running_mean, module.weight):
        if isinstance(tensor, Tensor):
            yield tensor.data_ptr()


def warn_if_mixed(loss: Tensor) -> bool:
    """Warn if an operation below a loss mixes samples. Return whether one does. Synchronizes."""
    if loss.is_meta or dispatch_modes.use():  # a mode counts operations, or measures memory
        return False
    terms = terms_of(loss.grad_fn)[:_TERMS]
    found = next((mixed for term, _ in terms if (mixed := mixing(term)) is not None), None)
    if found is None:
        return False
    warn(
        "backward: the model mixes the samples of a micro-batch: the gradients of the first and the last item "
        f"of this loss meet at {found.node}, whose result has shape {list(found.shape)}. A split changes which "
        "samples are mixed, so no split gives the gradient of the whole batch. If you did not intend this, "
        "check the dimensions of means, norms and softmaxes, and whether the layer needs batch_first=True. "
        "Otherwise, make micro-batches as large as memory allows. Ignore this warning if the items are parts "
        "of a single sample, such as the nodes of a graph.",
        CoupledLossWarning,
    )
    return True


class _Seen(NamedTuple):
    """What a hook made of a gradient: the norms before and after, if the hook changed the norm alone."""

    before: float
    after: float


class Clips:
    """Looks for clipping hooks on parameters, and for ``clip_gradient``, in the first windows of an accumulator.

    A hook is only observed: for one backward pass, a function that calls it takes its place. A hook clips if it
    limits all entries to one size, or if it gives gradients of different norms the same norm. Hooks that scale or
    mask the gradient are linear, so they commute with the sum over micro-batches.
    """

    def __init__(self) -> None:
        self._told = False
        self._clipping: Tensor | None = None  # the parameter of a hook that was seen to clip
        self._seen: dict[tuple[int, Any], _Seen] = {}

    def check_gates(self, loss: Tensor) -> None:
        """Warn if a graph holds ``clip_gradient``."""
        if not self._told and any(node.name() == "_ClippedBackward" for node, _ in walk(loss.grad_fn)):
            self._warn(
                "the graph holds gg.clip_gradient, which clips",
                "Clip the whole batch's gradient: Accumulator(optimizer, clip_norm=1.0). Or multiply max_value by "
                "the number of items in the window over that in the micro-batch, which is exact.",
            )

    def warn(self, name: Callable[[Tensor], str]) -> None:
        """Warn if a hook clipped. ``name`` returns a parameter's name."""
        if self._clipping is not None and not self._told:
            self._warn(
                f"a hook on {name(self._clipping)} clips",
                "Remove the hook, and clip the whole batch's gradient: Accumulator(optimizer, clip_value=0.1) or "
                "clip_norm=1.0; for some parameters only, clip parameter.grad in a hook that you register with "
                "optimizer.register_step_pre_hook.",
            )

    def _warn(self, what: str, instead: str) -> None:
        self._told = True
        warn(
            f"backward: {what} the gradient of each micro-batch. The mean of clipped gradients is not the clipped "
            f"gradient of the whole batch. {instead}",
            CoupledLossWarning,
        )

    @contextmanager
    def observed(self, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Observe the hooks on parameters during a backward pass."""
        tables = [(p, table) for p in parameters if not p.is_meta for table in leaf_hooks.use(p)]
        replaced: list[tuple[Any, Any, Any, Any]] = []
        for parameter, table in tables:
            for key, hook in list(table.items()):
                table[key] = spy = partial(self._run, hook, parameter, (id(parameter), key))
                replaced.append((table, key, hook, spy))
        try:
            yield
        finally:
            for table, key, hook, spy in replaced:
                if table.get(key) is spy:  # a hook may remove itself
                    table[key] = hook

    def _run(
        self, hook: Callable[[Tensor], Any], parameter: Tensor, key: tuple[int, Any], given: Tensor
    ) -> Any:
        """Run a hook on a gradient, or on the parameter whose gradient was just accumulated."""
        after_accumulation = given is parameter
        gradient = given.grad if after_accumulation else given
        if gradient is None or gradient.layout != torch.strided:
            return hook(given)
        before = gradient.detach().clone()
        result = hook(given)
        after = given.grad if after_accumulation else given if result is None else result
        if (
            isinstance(after, Tensor)
            and after.shape == before.shape
            and self._clipped(key, before, after.detach())
        ):
            self._clipping = parameter
        return result

    def _clipped(self, key: tuple[int, Any], before: Tensor, after: Tensor) -> bool:
        """Return whether a hook clipped, by value or, compared with its last call, by norm."""
        if torch.equal(before, after):
            seen = _Seen(float(before.norm()), float(before.norm()))
        else:
            changed = before != after
            sizes, limit = before.abs(), after.abs().max()
            limited = torch.where(changed, (after.abs() == limit) & (sizes > limit), sizes <= limit).all()
            if limit > 0 and limited and sizes.unique().numel() > 1:
                return True
            seen = _Seen(float(before.norm()), float(after.norm()))
            if not seen.after or not torch.allclose(after * seen.before, before * seen.after, rtol=_ROUNDING):
                self._seen.pop(key, None)
                return False
        last, self._seen[key] = self._seen.get(key), seen
        if last is None:
            return False
        # One of both was clipped, to the limit that the other one reaches or respects.
        low, high = sorted((last, seen))
        clipped = high.after < high.before * (1 - _ROUNDING)
        same = abs(low.after - high.after) <= _ROUNDING * high.after
        apart = low.before < high.before * (1 - _ROUNDING)
        return clipped and apart and (same or (low.after == low.before and low.before <= high.after))
