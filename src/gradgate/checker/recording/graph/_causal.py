"""Finds models of sequences whose output at each position depends on no later position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import ops, signed
from gradgate.checker.recording.graph._broadcasts import node_shape
from gradgate.torch_compat import saved_tensor

_WEIGHTED = {ops.MM: "self", ops.ADDMM: "mat1"}  # the tensor whose rows are multiplied
_OVER_A_DIMENSION = ops.SPLITS | {ops.SELECT, ops.SLICE, ops.MEAN_OVER_DIMS}
_EACH_POSITION = (
    ops.ELEMENTWISE
    | ops.SAME_VALUES
    | ops.RESHAPES
    | ops.CLASS_LOSSES
    | ops.BATCHED_PRODUCTS
    | _WEIGHTED.keys()
    | ops.AT_EACH_POSITION
    | _OVER_A_DIMENSION
)
_WITH_POSITIONS = ops.BATCHED_PRODUCTS | {ops.EMBEDDING}  # not within the steps of a recurrent network
_MOST_NODES = 3_000
_MASKED = -1e4


def is_causal(loss: Any, tokens: Tensor) -> bool:
    """Return whether certainly no output below a loss depends on later tokens, but some depend on earlier ones."""
    return tokens.shape[0] > 1 and any(_Causal(tokens.numel(), time).reads(loss) for time in {*tokens.shape})


def hidden_keys(nodes: Iterable[Any], tokens: Tensor) -> Iterator[Tensor]:
    """Yield, for each attention over these tokens, which of them the last query of their row can't read."""
    count, time = tokens.shape
    for node in nodes:
        if node.name() in ops.ATTENTION_WEIGHTS:
            weights = saved_tensor.use(node, "result")
            hidden = None if weights is None else weights == 0
        elif node.name().startswith(ops.ATTENTION):
            mask = _mask_of(node)
            hidden = None if mask is None else mask <= _MASKED
        else:
            continue
        if (
            hidden is not None
            and hidden.shape[-2:] == (time, time)
            and hidden.numel() % (count * time**2) == 0
        ):
            yield hidden.reshape(count, -1, time, time)[:, 0, -1]


def _mask_of(attention: Any) -> Tensor | None:
    names = (name for name in ("attn_mask", "attn_bias") if hasattr(attention, f"_saved_{name}"))
    return next((mask for name in names if (mask := saved_tensor.use(attention, name)) is not None), None)


class _Causal:
    def __init__(self, tokens: int, time: int) -> None:
        self._tokens, self._time = tokens, time
        self._latest: dict[Any, int] = {}

    def reads(self, loss: Any) -> bool:
        """Follow a loss down to its leaves. Return False if an operation may read later positions."""
        todo, seen = [(loss, 0)], set[Any]()
        mixing = weighted = products = 0
        for node, output in todo:  # grows during the loop
            if node in seen and node.name() not in ops.RECURRENT:
                continue
            name = node.name()
            weighted += name in ops.ATTENTION_WEIGHTS
            products += name in ops.BATCHED_PRODUCTS
            if name == ops.LEAF or node in seen:
                if output and name in ops.RECURRENT:
                    return False
                continue
            seen.add(node)
            below = [child for child in node.next_functions if child[0] is not None]
            if name == ops.STACK and len(node.next_functions) == self._time:
                entered = self._below_a_stack(node)
                if entered is None:
                    return False
                below, mixing = entered, mixing + 1
            elif name in ops.ATTENTION_WEIGHTS or name.startswith(ops.ATTENTION) or name in ops.RECURRENT:
                if output or not self._is_one_way(node, name):
                    return False
                mixing += 1
            elif name == ops.CAT:
                if signed(node._saved_dim) not in (-1, 2):
                    return False
            elif name not in _EACH_POSITION or not self._keeps_positions(node, name):
                return False
            todo += below
            if len(seen) > _MOST_NODES:
                return False
        return mixing > 0 and products <= 2 * weighted

    def _is_one_way(self, node: Any, name: str) -> bool:
        """Return whether attention or a recurrent layer uses only earlier positions."""
        if name in ops.RECURRENT:
            return not node._saved_bidirectional and not getattr(node, "_saved_reverse", False)
        if name in ops.ATTENTION_WEIGHTS:
            weights = saved_tensor.use(node, "result")
            return weights is not None and self._is_square(weights) and not bool(weights.triu(1).any())
        query, key = (saved_tensor.use(node, name) for name in ("query", "key"))
        if query is None or key is None or not query.shape[-2] == key.shape[-2] == self._time:
            return False
        if getattr(node, "_saved_is_causal", False):
            return True
        mask = _mask_of(node)
        if mask is None or not self._is_square(mask):
            return False
        later = torch.ones(self._time, self._time, dtype=torch.bool, device=mask.device).triu(1)
        return bool((mask[..., later] <= _MASKED).all())

    def _is_square(self, values: Tensor) -> bool:
        return values.dim() > 1 and values.shape[-1] == values.shape[-2] == self._time

    def _keeps_positions(self, node: Any, name: str) -> bool:
        """Return whether an operation on all positions computes each one by itself."""
        if name in _WEIGHTED:
            rows = saved_tensor.use(node, _WEIGHTED[name])
            return rows is not None and rows.dim() == 2 and len(rows) == self._tokens
        return not self._is_unbound(node) and self._keeps_positions_apart(node)

    def _below_a_stack(self, stack: Any) -> list[tuple[Any, int]] | None:
        """Return what the steps of a recurrent network read; None if a step may read a later position."""
        entered: list[tuple[Any, int]] = []
        for place, (step, output) in enumerate(stack.next_functions):
            if step is None or self._latest_below(step, output, entered) > place:
                return None
        return entered

    def _latest_below(self, node: Any, output: int, entered: list[tuple[Any, int]]) -> int:
        """Return the last position that a step reads. ``entered`` collects the inputs of all positions."""
        order, todo = [], [(node, False)]
        while todo:  # children before their users
            inner, done = todo.pop()
            if done:
                order.append(inner)
            elif inner not in self._latest:
                self._latest[inner] = -1
                todo.append((inner, True))
                below = [pair for pair in inner.next_functions if pair[0] is not None]
                if self._is_at_a_position(inner):
                    entered += [pair for pair in below if pair not in entered]
                else:
                    todo += [(child, False) for child, _ in below]
        for inner in order:
            self._latest[inner] = self._read_by(inner)
        return max(self._latest[node], output if self._is_unbound(node) else -1)

    def _read_by(self, node: Any) -> int:
        """Return the last position that a node within a step reads, if its inputs are known."""
        if self._is_unbound(node):
            return -1  # the output that is used tells the position
        if self._is_at_a_position(node):
            return int(signed(node._saved_index)) % self._time
        if node.name() == ops.LEAF:
            return -1
        if node.name() not in _EACH_POSITION - _WITH_POSITIONS or not self._keeps_positions_apart(node):
            return self._time
        below = [pair for pair in node.next_functions if pair[0] is not None]
        places: list[int] = [output for child, output in below if self._is_unbound(child)]
        return max([*places, *(self._latest[child] for child, _ in below), -1])

    def _is_at_a_position(self, node: Any) -> bool:
        """Return whether a node takes one position, or each position, from a tensor of all positions."""
        if node.name() == ops.SELECT:
            return bool(node._saved_self_sym_sizes[signed(node._saved_dim)] == self._time)
        return self._is_unbound(node)

    def _is_unbound(self, node: Any) -> bool:
        """Return whether a node takes a tensor apart into its positions."""
        if node.name() != ops.UNBIND:
            return False
        shape = node_shape(*node.next_functions[0])
        return bool(shape) and shape[signed(node._saved_dim)] == self._time

    def _keeps_positions_apart(self, node: Any) -> bool:
        """Return whether an operation is not over a dimension of positions, except a slice of all."""
        if node.name() not in _OVER_A_DIMENSION:
            return True
        sizes, dim = node._saved_self_sym_sizes, node._saved_dim
        if node.name() == ops.SLICE and node._saved_start == 0 and node._saved_end >= sizes[signed(dim)]:
            return True
        dims = dim if isinstance(dim, (tuple, list)) else [dim]
        return bool(dims) and all(sizes[signed(dim)] != self._time for dim in dims)
