"""Sample values, measure gradients, and find the operation where a gradient becomes zero, infinite or NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph, edges
from gradgate.checker.recording._node_lines import line_of
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._user_objects import is_a
from gradgate.events import Site
from gradgate.torch_compat import node_number

_MOST = 0.8  # rounding is reported if values with more than this share of the gradient never changed
# Rounding is also reported if less than this share of the updates arrived in the values.
_LEAST = 0.4
_SAMPLE = 2048  # values per sample: from this many to twice as many, or all if there are fewer
_INFINITE = float("inf")
_detach, _item = Tensor.detach, Tensor.item  # the original methods: watched ones are slower


def sample(parameter: Tensor) -> Tensor:
    """Return a copy of some of a tensor's values, evenly spread."""
    flat = _detach(parameter).reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two samples are equal."""
    return a.shape == b.shape and torch.equal(a, b)


def sum_of(values: Tensor) -> float:
    """Return a number that identifies a sample's values."""
    return float(values.abs().double().sum())


def size_and_norm(gradient: Any) -> tuple[float, float]:
    """Return a gradient's largest absolute value and its norm."""
    dense = _detach(gradient)
    dense = dense.coalesce().values() if dense.is_sparse else dense
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    if not dense.numel():
        return 0.0, 0.0
    wide = torch.promote_types(dense.dtype, torch.float32)
    norm = torch.linalg.vector_norm(dense, dtype=wide)
    low, high, size = _floats(*(each.to(wide) for each in torch.aminmax(dense)), norm)
    return max(-low, high), size


def _floats(*scalars: Tensor) -> list[float]:
    """Return the values of scalars in a single transfer, because each transfer synchronizes with the device."""
    return [_item(each) for each in scalars] if scalars[0].is_cpu else torch.stack(scalars).tolist()


def moved_by(before: Tensor, after: Tensor, numel: int) -> tuple[float, float]:
    """Estimate from samples the norms of a parameter's change and of its values before the change."""
    if before.shape != after.shape or not before.is_floating_point() or not before.numel():
        return 0.0, 0.0
    wide = torch.promote_types(before.dtype, torch.float32)
    norms = [torch.linalg.vector_norm(values, dtype=wide) for values in (after - before, before)]
    change, size = (torch.stack(norms) * (numel / before.numel()) ** 0.5).tolist()
    return change, size


class Rounding:
    """Follows how far the sampled values of a 16-bit parameter move, and how much gradient each one got."""

    def __init__(self, values: Tensor) -> None:
        self._first = self._last = values
        self._changed = torch.zeros_like(values, dtype=torch.bool)
        self._gradients = torch.zeros_like(values, dtype=torch.float32)
        self._way = self._meant = torch.zeros((), device=values.device)

    def follow(self, before: Tensor, after: Tensor, gradient: Tensor, update: Tensor | None) -> bool:
        """Add one step. Return whether most of the updates so far were rounded away.

        Also true if values that have never changed got most of the gradient, which needs no ``update``.
        """
        size = sample(gradient).abs()
        if not self._first.shape == before.shape == after.shape == size.shape:
            return False
        self._changed |= (before != after) | (after != self._first)
        self._gradients += size
        if update is not None:
            self._meant = self._meant + sample(update).abs().sum()
            self._way = self._way + (after.float() - self._last.float()).abs().sum()
        self._last = after
        still = self._gradients[~self._changed].sum() > _MOST * self._gradients.sum()
        return bool(still | (self._way < _LEAST * self._meant))


def update_of(optimizer: Any, group: dict[str, Any], parameter: Any) -> Any:
    """Return the last update of torch's SGD or Adam before rounding and weight decay; None for other optimizers."""
    state = optimizer.state[parameter]
    if isinstance(optimizer, torch.optim.SGD):
        momentum = state.get("momentum_buffer")
        return group["lr"] * (parameter.grad if momentum is None else momentum).float()
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and "exp_avg" in state:
        first, second = (1 - beta ** float(state["step"]) for beta in group["betas"])
        squares = state.get("max_exp_avg_sq", state["exp_avg_sq"]).float() / second
        return group["lr"] * state["exp_avg"].float() / first / (squares.sqrt() + group["eps"])
    return None


@torch.no_grad()
def statistics_drift(
    first: tuple[Tensor, Tensor] | None, now: tuple[Tensor, Tensor] | None
) -> tuple[float, float] | None:
    """Return how far a batch norm's running means and variances moved, averaged over the channels.

    The means' distance is in units of the initial standard deviation, the variances' in units of the initial
    variance.
    """
    if first is None or now is None or first[0].shape != now[0].shape:
        return None
    (means, variances), (new_means, new_variances) = first, now
    least = variances.clamp(min=1e-12)
    moved = ((new_means - means).abs() / least.sqrt()).double().mean()
    return float(moved), float(((new_variances - variances).abs() / least).double().mean())


class Probe:
    """Hooks on all nodes of one graph, for one backward pass. The hooks change nothing and keep no node alive.

    Args:
        recorder: keeps the hooks' own work out of the recording.
        graph: the graph of a backward call.
        numbers: parameter numbers, by the id of the leaf. Leaves that aren't parameters are absent.

    Attributes:
        broken: line, name and parameters of the first operation that got finite gradients and returned infinity
            or NaN.
    """

    def __init__(self, recorder: Recorder, graph: Graph, numbers: dict[int, int]) -> None:
        self._recorder = recorder
        self.broken: tuple[Site, str, frozenset[int]] | None = None
        # Line and name of each operation that returned a zero gradient, with the parameters behind it as bits.
        self._killed: list[tuple[Site, str, int]] = []
        self._alive = 0  # parameters that got a nonzero gradient on any path, as bits
        self._numbers = list(numbers.values())
        bits = {leaf: 1 << place for place, leaf in enumerate(numbers)}
        behind = graph.behind({node: bits.get(id(leaf), 0) for node, leaf in graph.leaf_nodes.items()})
        self._handles = []
        for node in graph.nodes:
            inputs = [behind.get(child, 0) for child, _ in edges(node)]
            leaves = [behind.get(child, 0) if child in graph.leaf_nodes else 0 for child, _ in edges(node)]
            hook = self._hook(node.name(), line_of(node), behind[node], inputs, leaves)
            self._handles.append(node.register_hook(hook))

    def remove(self) -> None:
        """Remove the hooks, because the script may use the graph again."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str, line: Site, behind: int, behind_inputs: list[int], leaves: list[int]) -> Any:
        def look(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
            with self._recorder.working():
                sizes = list(map(_size, inputs))
                for size, leaf in zip(sizes, leaves, strict=False):
                    self._alive |= leaf if size else 0
                if all(size is None or 0 < size < _INFINITE for size in sizes):
                    return
                given = max((size for size in map(_size, outputs) if size is not None), default=0.0)
                for size, behind_input in zip(sizes, behind_inputs, strict=False):
                    if size is None:
                        continue
                    if size == 0 and given > 0:
                        self._killed.append((line, name, behind_input))
                    elif self.broken is None and not size < _INFINITE and given < _INFINITE:
                        self.broken = (line, name, frozenset(self._parameters(behind)))

        return look

    def _parameters(self, bits: int) -> Iterator[int]:
        return (number for place, number in enumerate(self._numbers) if bits >> place & 1)

    def zeroed(self) -> Iterator[tuple[int, Site, str]]:
        """Yield each parameter whose gradient an operation turned to zero, with that operation's line and name."""
        for line, name, bits in self._killed:
            for number in self._parameters(bits & ~self._alive):
                yield number, line, name


@torch.no_grad()
def nan_parameters(graph: Graph) -> bool:
    """Return whether a leaf of the graph is NaN. Then an update made the NaN, not an operation of the graph."""
    return any(bool(leaf.isnan().any()) for leaf in graph.leaves.values())


def first_nan(graph: Graph) -> tuple[Site, str] | None:
    """Return line and name of the first forward operation that returned NaN, judging by the saved tensors.

    If a NaN came from outside the graph, return the operation that used it.
    """
    for node in sorted(graph.nodes, key=node_number.use):
        for name, (child, _) in zip(("_saved_self", "_saved_other"), node.next_functions, strict=False):
            if _is_nan(node, name):
                return (child is not None and line_of(child)) or line_of(node), node.name()
        if _is_nan(node, "_saved_result"):
            return line_of(node), node.name()
    return None


def _is_nan(node: Any, name: str) -> bool:
    try:
        saved = getattr(node, name, None)
        return isinstance(saved, Tensor) and saved.is_floating_point() and bool(saved.isnan().any())
    except RuntimeError:  # the saved tensor was freed or changed in place
        return False


def _size(gradient: Any) -> float | None:
    """Return the largest absolute value of a gradient; infinity or NaN if the gradient contains any."""
    if (
        not isinstance(gradient, Tensor)
        or gradient.is_sparse
        or gradient.is_complex()
        or not gradient.numel()
    ):
        return None
    try:
        low, high = _floats(*torch.aminmax(_detach(gradient)))  # vector_norm(ord=inf) is 20 times slower
        return float(max(-low, high))
    except (RuntimeError, NotImplementedError):  # aminmax does not support every dtype and device
        return None


def value_of(tensors: Any) -> float | None:
    """Return the value of the loss if reading it needs no device synchronization."""
    if is_a(tensors, Tensor) and tensors.numel() == 1 and tensors.device.type == "cpu":
        with torch.no_grad():
            return float(tensors.detach().double())
    return None
