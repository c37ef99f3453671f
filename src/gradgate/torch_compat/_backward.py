"""Names for backward passes. Each has a public replacement, which is slower."""

from __future__ import annotations

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
