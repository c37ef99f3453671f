"""Run a forward and backward pass, on fake tensors or real ones, and follow what it holds in memory."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradgate.errors import OptionError
from gradgate.memory._follower import Fakes, Follower, NotForeseeableError, TooLongError, Trace
from gradgate.nests import mapped, tensors_in

_MOST_OPERATIONS = 40_000  # with so many samples: else each of them is gone through by itself


def trace_fake(
    loss_fn: Callable[[Any], Any],
    data: Callable[[], Any],
    fakes: Fakes,
    *,
    copies: bool = False,
    many: bool = False,
) -> Trace:
    """Follow a pass on fake tensors: nothing is computed, nothing is allocated.

    Args:
        loss_fn: returns the loss of a micro-batch, or the loss and its count.
        data: makes the micro-batch; called where its tensors become fake ones.
        fakes: of passes over the same model.
        copies: the micro-batch is a copy of its samples, which counts.
        many: give up where many samples take many operations.

    Raises:
        TooLongError: it was given up.
        OptionError: the loss function returns no scalar with a graph.
        NotForeseeableError: the loss function asks for numbers, or uses what has no fake.
    """
    try:
        with fakes.mode:
            batch = mapped(data(), lambda part: _fake(part, fakes.mode))
        follower = Follower(fakes)
        follower.most_operations = _MOST_OPERATIONS if many else math.inf
        return _traced(loss_fn, batch, follower, fakes.mode, copies=copies)
    except (NotForeseeableError, TooLongError, OptionError):
        raise
    except Exception as error:
        raise NotForeseeableError(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error


def _fake(part: Any, mode: FakeTensorMode) -> Any:
    return mode.from_tensor(part) if isinstance(part, Tensor) and not isinstance(part, FakeTensor) else part


def trace_real(loss_fn: Callable[[Any], Any], data: Callable[[], Any], *, copies: bool = False) -> Trace:
    """Follow a real pass."""
    return _traced(loss_fn, data(), Follower(None), None, copies=copies)


def _traced(
    loss_fn: Callable[[Any], Any],
    batch: Any,
    follower: Follower,
    fake: FakeTensorMode | None,
    *,
    copies: bool,
) -> Trace:
    """Follow a pass. Buffers that it writes are put back, and so is the random state."""
    states = torch.get_rng_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
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
            if fake is not None:
                stack.enter_context(fake)
            stack.enter_context(follower)
            stack.enter_context(follower.naming_modules())
            outcome = loss_fn(batch)
            loss = outcome[0] if isinstance(outcome, tuple) else outcome
            del outcome
            _check(loss)
            follower.trace.parameters = [node.variable for node in _leaves(loss)]
            for node in _leaves(loss):
                # Other graphs of the user's may share these nodes: the hooks go in any case.
                stack.callback(node.register_prehook(_dropped).remove)
            loss.backward()
            del loss
    finally:
        follower.put_back()
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if devices:
            torch.cuda.set_rng_state_all(devices)
    return follower.finished()


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


def _leaves(loss: Tensor) -> Iterator[Any]:
    """Yield the nodes that add to gradients."""
    todo: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node
        todo.extend(child for child, _ in node.next_functions)
