"""One backward pass into given parameters, at the least cost in Python."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.errors import UpdateError
from gradgate.ranks import Sharded
from gradgate.torch_compat import run_backward, transforming

_public = inspect.unwrap(torch.autograd.backward)  # also where it is watched already


def backward_sharded(loss: Tensor, seed: Tensor, retain_graph: bool, sharded: Sharded) -> None:
    """Add ``seed`` times ``loss``'s gradient to the owned parameters, and to no other, under ``fully_shard``."""
    graph = Graph(loss)
    for node in graph.nodes:
        sharded.check_known(node)
        if node.name() == "_ClippedBackward":
            raise UpdateError(
                "backward: the graph holds gg.clip_gradient. Under fully_shard ranks add their gradients up within "
                "the backward pass, so the graph carries them weighed by their counts, and a limit would mean "
                "something else for each micro-batch. Clip the whole gradient: Accumulator(..., clip_norm=1.0)."
            )
    with on_purpose(), sharded.only_owned(list(graph.leaves.values())):
        torch.autograd.backward(loss, seed, retain_graph=retain_graph)


def backward(loss: Tensor, seed: Tensor, inputs: list[Tensor], retain_graph: bool) -> None:
    """Add ``seed`` times the gradient of ``loss`` to the ``.grad`` of ``inputs``, and of nothing else.

    The same as ``torch.autograd.backward(loss, seed, inputs=inputs)`` for a scalar whose seed is of its own
    shape, type and device. That one asks each input by name whether it overrides torch functions: 0.7 ms for 1,000
    parameters, and a third of all that an update costs beside the plain loop where a model is tiny.
    """
    unusual = type(loss) is not Tensor or transforming.use()
    watched = torch.autograd.backward is not _public  # somebody stands around it, to see every backward pass
    if unusual or watched:
        with on_purpose():
            torch.autograd.backward(loss, seed, retain_graph=retain_graph, inputs=inputs)
        return
    options = {"allow_unreachable": True, "accumulate_grad": True}
    run_backward.use((loss,), (seed,), retain_graph, False, tuple(inputs), **options)


def on_purpose() -> AbstractContextManager[None]:
    from gradgate import events  # which takes as long to import as all else here, and is rarely needed

    return events.on_purpose()
