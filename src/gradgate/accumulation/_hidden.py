"""Losses whose graphs hide parameters from autograd are refused."""

from __future__ import annotations

from torch import Tensor

from gradgate.autograd_graph import REENTRANT_CHECKPOINT, Graph, hidden_parameter
from gradgate.errors import GraphError
from gradgate.torch_compat import next_node_number


class HiddenParameters:
    """Looks for hidden parameters whenever a loss's graph has another size than the one before it.

    Autograd runs only what leads to an owned parameter, so it would silently skip a reentrant checkpoint, whose
    parameters it doesn't see. Walking a graph costs up to a tenth of a tiny model's backward pass. Its size costs
    nothing: autograd numbers the nodes that a thread makes.
    """

    def __init__(self) -> None:
        self._start = 0
        self._sizes: dict[tuple[str, bool], int] = {}

    def refuse(self, name: str, loss: Tensor, later: bool) -> None:
        """Raise GraphError if the graph hides parameters.

        Args:
            name: which loss.
            loss: before its backward pass.
            later: whether the window holds a micro-batch of this loss already. If not, the size includes the nodes
                that were made between windows.
        """
        if loss.grad_fn is None:
            return
        size = next_node_number.use() - self._start
        if self._sizes.get((name, later)) == size:
            return
        self._sizes.pop((name, later), None)
        _look(loss)
        self._sizes[name, later] = size

    def passed(self) -> None:
        """Note that a backward pass has ended: it makes nodes too."""
        self._start = next_node_number.use()


def _look(loss: Tensor) -> None:
    hidden = hidden_parameter(Graph(loss))
    if hidden is None:
        return
    if hidden.node == REENTRANT_CHECKPOINT:
        raise GraphError(
            "backward: the graph holds a reentrant checkpoint, which hides its parameters from autograd: "
            "they would get no gradient. Write torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    raise GraphError(
        f"backward: the graph holds {hidden.node}, which keeps {hidden.module} for a backward pass of its own and "
        f"hides its parameters ('{hidden.path}') from autograd: they would get no gradient, or one past their "
        "owner. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) in its place."
    )
