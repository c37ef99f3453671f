"""Runs and traces a forward and backward pass, undoes its changes, and finds the fake tensors that it leaves."""

from __future__ import annotations

import gc
import math
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, FunctionType, GeneratorType
from typing import Any

import torch
from torch import Tensor

from gradgate.autograd_graph import Graph
from gradgate.errors import OptionError
from gradgate.planning._memory import in_one_line
from gradgate.planning._pass_tracer import FakePassError, FakeTensors, PassTrace, PassTracer, TooLongError
from gradgate.planning._reachable_state import ReachableState
from gradgate.pytree import mapped_tensors, tensors_in
from gradgate.torch_compat import compiler_is_loaded

_LEVELS = 4  # search depth: containers between a cache and its tensor


def trace_pass(
    loss_fn: Callable[[Any], Any],
    make_batch: Callable[[], Any],
    state: ReachableState,
    *,
    fakes: FakeTensors | None = None,
    copies: bool = False,
    most_operations: float = math.inf,
) -> PassTrace:
    """Trace a pass on fake tensors, which computes and allocates nothing, or on real ones if ``fakes`` is None.

    ``state`` restores the objects that the pass changes. With ``copies``, the micro-batch is a copy of samples, so
    its memory counts.

    Raises:
        TooLongError: there were more than ``most_operations``.
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
    except Exception as error:  # noqa: BLE001 - a loss function may raise anything
        reason = f"fake tensors cannot run loss_fn: {in_one_line(error)}"
    raise FakePassError(reason)  # outside the handler, which keeps the frames that hold fakes alive


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
        # An autocast block around this would keep copies of parameters.
        undo.callback(torch.clear_autocast_cache)
        undo.push(tracer.restore)
        with ExitStack() as modes:
            if compiler_is_loaded():
                modes.enter_context(torch.compiler.set_stance("force_eager"))
            if gc.isenabled():  # otherwise each pass would free reference cycles at a different time
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
                # Drops the gradient before it reaches `.grad`. The hook is removed because other graphs may share
                # the node.
                modes.callback(node.register_prehook(lambda _: (None,)).remove)
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
        f"plan: loss_fn returned {what}. It must return the loss, a scalar computed from parameters, or the loss "
        "and its count: return loss, y.numel()."
    )


def holder_name(value: Any, ours: set[int]) -> str:
    """Return the path to an object from the nearest module, class or instance: ``"masks.CACHE[128]"``.

    The caller must not hold the object in a local list or a closure: these would be found as holders.
    """
    path = ""
    for _ in range(_LEVELS):
        ours = ours | {id(value)}
        referrers = _referrers(value, ours)
        holder = min(referrers, key=lambda each: not isinstance(each, (dict, list, tuple, set)), default=None)
        del referrers
        if not isinstance(holder, (dict, list, tuple, set)):
            return f"{'an object' if holder is None else f'a {type(holder).__qualname__}'}{path}"
        key = _key_of(value, holder)
        if _is_module_namespace(holder):
            return f"{holder['__name__']}.{key}{path}"  # type: ignore[index,call-overload]
        owner = next(
            (each for each in gc.get_referrers(holder) if getattr(each, "__dict__", 0) is holder), None
        )
        if owner is not None:
            return f"a {type(owner).__qualname__}'s {key}{path}"
        path, value = f"[{key!r}]{path}", holder
    return f"a {type(value).__qualname__}{path}"


def _referrers(value: Any, ours: set[int]) -> list[Any]:
    found = gc.get_referrers(value)
    skipped = ours | {id(found)}
    running = (FrameType, FunctionType, GeneratorType)
    return [each for each in found if id(each) not in skipped and not isinstance(each, running)]


def _key_of(value: Any, holder: Any) -> Any:
    # A function of its own: the generator makes `value` a cell, which would be found as a holder.
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return next((key for key, held in pairs if held is value), "?")


def _is_module_namespace(value: Any) -> bool:
    name = value.get("__name__") if isinstance(value, dict) else None
    return isinstance(name, str) and name in sys.modules and vars(sys.modules[name]) is value
