"""Names for backward passes, and for arithmetic on many tensors. Each has a public replacement, which is slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from gradgate.torch_compat._private import Private, torch

# torch.autograd.backward ends in this call. TORCH_LOGS does not show passes that begin here.
run_backward: Private[..., Any] = Private(
    "torch.autograd.Variable._execution_engine",
    "start a backward pass without checking its arguments again",
    find=lambda: torch().autograd.Variable._execution_engine.run_backward,
    instead=lambda losses, seeds, retain, create, inputs, **_: torch().autograd.backward(
        losses, seeds, retain, create, inputs=inputs
    ),
)

transforming: Private[[], bool] = Private(
    "torch._C._are_functorch_transforms_active",
    "tell whether a torch.func transform is active",
    find=lambda: torch()._C._are_functorch_transforms_active,
    instead=lambda: True,  # so that the public function is called
)

backward_pass_number: Private[[], int] = Private(
    "torch._C._current_graph_task_id",
    "tell which backward pass of several is running",
    find=lambda: torch()._C._current_graph_task_id,
    instead=lambda: 0,  # as if passes never ran in several threads at once, or within one another
)


def _foreach(name: str, single: Callable[..., Any] | None = None) -> Private[..., Any]:
    """Return a function that applies one operation to many tensors at once.

    Foreach is in beta: https://docs.pytorch.org/docs/stable/torch.html#foreach-operations.
    """

    def in_turn(tensors: Iterable[Any], *rest: Any, **options: Any) -> list[Any]:
        act = single or getattr(torch().Tensor, name)
        lists = (each if isinstance(each, (list, tuple)) else repeat(each) for each in rest)
        return [act(*arguments, **options) for arguments in zip(tensors, *lists)]  # noqa: B905 (repeat is endless)

    return Private(
        f"torch._foreach_{name}",
        f"call {name} on many tensors at once",
        find=lambda: getattr(torch(), f"_foreach_{name}"),
        instead=in_turn,
    )


foreach_add_ = _foreach("add_")
foreach_mul_ = _foreach("mul_")
foreach_zero_ = _foreach("zero_")
foreach_clamp_min_ = _foreach("clamp_min_")
foreach_clamp_max_ = _foreach("clamp_max_")
foreach_norm = _foreach("norm", lambda tensor, order=2: torch().linalg.vector_norm(tensor, order))
