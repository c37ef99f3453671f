"""Run a forward and backward pass on fake or real tensors, trace its memory, and undo what it changes."""

from __future__ import annotations

import gc
import math
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.errors import OptionError
from gradgate.planning._fake_tensors import FakePassError, FakeTensors
from gradgate.planning._pass_tracer import PassTrace, PassTracer, TooLongError
from gradgate.planning._reachable_state import ReachableState
from gradgate.pytree import mapped_tensors, tensors_in


def trace_pass(
    loss_fn: Callable[[Any], Any],
    make_batch: Callable[[], Any],
    state: ReachableState,
    *,
    fakes: FakeTensors | None = None,
    copies: bool = False,
    most_operations: float = math.inf,
) -> PassTrace:
    """Trace a pass: on fake tensors, which computes and allocates nothing, or on real ones if ``fakes`` is None.

    Args:
        loss_fn: returns the loss of a micro-batch, or the loss and its count.
        make_batch: makes the micro-batch.
        state: what is restored after the pass.
        fakes: the fake tensors of passes over the same model.
        copies: the micro-batch is a copy of its samples, and counts.
        most_operations: give up after so many.

    Raises:
        TooLongError: there were more operations.
        OptionError: the loss function returns no scalar with a graph.
        FakePassError: the loss function cannot run on fake tensors.
    """
    if fakes is None:
        return _traced(loss_fn, make_batch(), PassTracer(None, state), None, copies=copies)
    try:
        with fakes.mode:
            batch = mapped_tensors(make_batch(), fakes.of_input)
        return _traced(loss_fn, batch, PassTracer(fakes, state, most_operations), fakes.mode, copies=copies)
    except (FakePassError, TooLongError, OptionError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a loss function runs into
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
    raise FakePassError(reason)  # only here, where the frames that hold fakes are gone


def _traced(
    loss_fn: Callable[[Any], Any], batch: Any, tracer: PassTracer, fake_mode: Any, *, copies: bool
) -> PassTrace:
    for tensor in tensors_in(batch):
        tracer.inputs.add(id(tensor))
        if copies:
            tracer.note_created(tensor)
        else:
            tracer.note_existing(tensor)
    with ExitStack() as undo:
        _restore_random_states(undo)
        undo.callback(
            torch.clear_autocast_cache
        )  # an autocast block around us would keep copies of parameters
        undo.callback(tracer.restore)
        with ExitStack() as modes:
            if "torch._dynamo" in sys.modules:
                modes.enter_context(torch.compiler.set_stance("force_eager"))
            if gc.isenabled():  # or what reference cycles hold is freed at other moments in each pass
                modes.callback(gc.enable)
                gc.disable()
            modes.enter_context(torch.enable_grad())
            if fake_mode is not None:
                modes.enter_context(fake_mode)
            modes.enter_context(tracer)
            modes.enter_context(tracer.following_modules())
            outcome = loss_fn(batch)
            loss = outcome[0] if isinstance(outcome, tuple) else outcome
            del outcome
            _check_loss(loss)
            leaves = Graph(loss).leaf_nodes
            for node in leaves:
                # Other graphs of the user's may share these nodes, so the hooks have to go.
                modes.callback(node.register_prehook(_drop_gradient).remove)
            parameters = list(leaves.values())
            del leaves
            loss.backward()
            del loss
        return tracer.finish(parameters)


def _restore_random_states(undo: ExitStack) -> None:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    undo.enter_context(torch.random.fork_rng(devices))
    undo.callback(random.setstate, random.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        undo.callback(numpy.random.set_state, numpy.random.get_state())


def _check_loss(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.grad_fn is not None:
        return
    what = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        what = f"a tensor of shape {list(loss.shape)}{', without a graph' if loss.grad_fn is None else ''}"
    raise OptionError(
        f"plan: loss_fn returned {what}; it returns the loss, a scalar computed from parameters, or the loss and "
        "its count: return loss, y.numel()."
    )


def _drop_gradient(_: tuple[Tensor | None, ...]) -> tuple[None]:
    """Drop a gradient before it is added to ``.grad``, where nothing must be left."""
    return (None,)
