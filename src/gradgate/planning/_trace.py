"""Run a forward and backward pass, on fake tensors or real ones, and follow what it holds in memory."""

from __future__ import annotations

import gc
import math
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.errors import OptionError
from gradgate.planning._follower import FakePassError, Fakes, Follower, TooLongError, Trace
from gradgate.planning._surroundings import Surroundings
from gradgate.pytree import mapped, tensors_in


def trace_fake(
    loss_fn: Callable[[Any], Any],
    data: Callable[[], Any],
    fakes: Fakes,
    surroundings: Surroundings,
    *,
    copies: bool = False,
    most_operations: float = math.inf,
) -> Trace:
    """Follow a pass on fake tensors: nothing is computed, nothing is allocated.

    Args:
        loss_fn: returns the loss of a micro-batch, or the loss and its count.
        data: makes the micro-batch; called where its tensors become fake ones.
        fakes: of passes over the same model.
        surroundings: what is put back.
        copies: the micro-batch is a copy of its samples, which counts.
        most_operations: give up after so many.

    Raises:
        TooLongError: it was given up.
        OptionError: the loss function returns no scalar with a graph.
        FakePassError: the loss function asks for numbers, or uses what has no fake.
    """
    try:
        with fakes.mode:
            batch = mapped(data(), lambda part: _fake(part, fakes))
        follower = Follower(fakes, surroundings)
        follower.most_operations = most_operations
        return _traced(loss_fn, batch, follower, fakes.mode, copies=copies)
    except (FakePassError, TooLongError, OptionError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a loss function runs into
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
    raise FakePassError(reason)  # only here, where the frames that hold fakes are gone


def _fake(part: Any, fakes: Fakes) -> Any:
    if not isinstance(part, Tensor):
        return part
    fake = part if isinstance(part, fakes.kind) else fakes.mode.from_tensor(part)
    fakes.made.append(weakref.ref(fake))
    return fake


def trace_real(
    loss_fn: Callable[[Any], Any],
    data: Callable[[], Any],
    surroundings: Surroundings,
    *,
    copies: bool = False,
) -> Trace:
    """Follow a real pass."""
    return _traced(loss_fn, data(), Follower(None, surroundings), None, copies=copies)


def _traced(
    loss_fn: Callable[[Any], Any],
    batch: Any,
    follower: Follower,
    fake: AbstractContextManager[Any] | None,
    *,
    copies: bool,
) -> Trace:
    """Follow a pass. What it changes is put back, and so is the random state."""
    states = torch.get_rng_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    for tensor in tensors_in(batch):
        if copies:
            follower.made(tensor)
        else:
            follower.existed(tensor)
    follower.inputs = {id(tensor) for tensor in tensors_in(batch)}
    try:
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(_no_collection())
            if fake is not None:
                stack.enter_context(fake)
            stack.enter_context(follower)
            stack.enter_context(follower.naming_modules())
            outcome = loss_fn(batch)
            loss = outcome[0] if isinstance(outcome, tuple) else outcome
            del outcome
            _check(loss)
            leaves = Graph(loss).leaf_nodes
            for node in leaves:
                # Other graphs of the user's may share these nodes: the hooks go in any case.
                stack.callback(node.register_prehook(_dropped).remove)
            parameters = list(leaves.values())
            del leaves
            loss.backward()
            del loss
        return follower.finished(parameters)
    finally:
        follower.restore()
        torch.clear_autocast_cache()  # an autocast block around us would keep the copies of parameters
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if devices:
            torch.cuda.set_rng_state_all(devices)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no cycles meanwhile: what these hold would go at other moments in each pass."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _check(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.grad_fn is None:
        what = (
            f"a tensor of shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        graph = ", without a graph" if isinstance(loss, Tensor) and loss.grad_fn is None else ""
        raise OptionError(
            f"plan: loss_fn returned {what}{graph}; it returns the loss, a scalar computed from parameters, or the "
            "loss and its count: return loss, y.numel()."
        )


def _dropped(_: tuple[Tensor | None, ...]) -> tuple[None]:
    """Let a gradient go where it would be added to the one that stands: nothing is left in ``.grad``."""
    return (None,)
