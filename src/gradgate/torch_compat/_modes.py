"""Modes of torch's dispatcher, function overrides and compiler."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gradgate.torch_compat._private import Private, torch


def _as_torch_itself() -> Callable[[], AbstractContextManager[None]]:
    from contextlib import contextmanager

    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    dispatching, overriding = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack

    @contextmanager
    def without_modes() -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            yield

    without_functions, without_classes = torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass

    def use() -> AbstractContextManager[None]:
        if dispatching():
            return without_modes()
        return without_functions() if overriding() else without_classes()

    return use


def _enters(use: Callable[[], AbstractContextManager[None]]) -> bool:
    with use():
        return True


as_torch_itself: Private[[], AbstractContextManager[None]] = Private(
    "torch._C.DisableTorchFunctionSubclass or torch.utils._python_dispatch._disable_current_modes",
    "keep its own computation out of the script's modes and tensor classes",
    find=_as_torch_itself,
    instead=nullcontext,
    works=_enters,
    rules=("every rule",),
)


def _dispatch_modes() -> Callable[[], Sequence[Any]]:
    count, at = torch()._C._len_torch_dispatch_stack, torch()._C._get_dispatch_stack_at
    return lambda: [at(place) for place in range(size)] if (size := count()) else ()


dispatch_modes: Private[[], Sequence[Any]] = Private(
    "torch._C._get_dispatch_stack_at",
    "distinguish training from runs on fake tensors and from trial passes of gradgate.plan",
    find=_dispatch_modes,
    instead=lambda: (),
    works=lambda modes: len(modes()) >= 0,
    rules=("every rule",),
)

top_function_mode: Private[[], Any] = Private(
    "torch.overrides._get_current_function_mode",
    "follow values that leave their graph",
    find=lambda: torch().overrides._get_current_function_mode,
    instead=lambda: None,
    rules=("GG401", "GG402", "GG406", "GG407"),
)


def compiler_is_loaded() -> bool:
    """Return whether torch's compiler has been imported. gradgate never imports it, because that takes seconds."""
    return "torch._dynamo" in sys.modules


def _compiled() -> bool:
    """Return whether torch.compile has compiled anything: the list of its backends then holds more than None."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    try:
        return any(backend is not None for backend in dynamo.eval_frame.cached_backends.values())
    except AttributeError:  # the compiler was imported after this function was tested
        anything_compiled.use = anything_compiled.otherwise
        return anything_compiled.use()


anything_compiled: Private[[], bool] = Private(
    "torch._dynamo.eval_frame.cached_backends",
    "tell whether the script compiles anything",
    find=lambda: _compiled,
    instead=compiler_is_loaded,  # observing less is better than making torch compile again
    works=lambda compiled: isinstance(compiled(), bool),
    rules=("GG401", "GG402"),
)

_functions: dict[str, Any] = {"newest": lambda: None, "graphed": False}


def _reuses_gradients() -> bool:
    if "torch._inductor.cudagraph_trees" in sys.modules:
        return True
    classes = torch().autograd.Function.__subclasses__()  # in order of creation
    if classes[-1] is not _functions["newest"]():
        graphed = any(each.__name__ == "Graphed" for each in classes)  # made by make_graphed_callables
        _functions.update(newest=weakref.ref(classes[-1]), graphed=graphed)
    return bool(_functions["graphed"])


# https://github.com/pytorch/pytorch/issues/96693, https://github.com/pytorch/pytorch/issues/181723
reuses_gradients: Private[[], bool] = Private(
    "torch._inductor.cudagraph_trees",
    "tell whether CUDA graphs run, which overwrite each gradient with the next one",
    find=lambda: _reuses_gradients if torch().backends.cuda.is_built() else bool,  # bool() is False
    instead=lambda: True,
    works=lambda reuses: isinstance(reuses(), bool),
)

uncompiled: Private[[Callable[..., Any]], Callable[..., Any]] = Private(
    "torch._disable_dynamo",
    "keep a hook out of torch.compile without importing sympy",
    find=lambda: torch()._disable_dynamo,
    instead=lambda function: torch().compiler.disable(function),
)
