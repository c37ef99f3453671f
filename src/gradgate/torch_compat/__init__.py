"""All private names of torch and CPython that gradgate uses. No other file may use one.

Any release may change a private name. Each :class:`Private` states the purpose of its names, and the replacement if
they are missing or have changed. It tests the names once, on first use and never at import. The replacement is
public code with the same result, or else a clear error. :func:`unseen` returns the observations that the checker
can no longer make. Every report shows them, together with the rules that need them.

Some names begin with an underscore but are documented, so they are not private: the values that a node saves
(``node._saved_self``: https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors), ``sys._getframe``,
``torch.utils._python_dispatch.TorchDispatchMode`` (https://docs.pytorch.org/docs/stable/notes/extending.html),
``sys._current_frames``, ``os._exit``, and the methods of named tuples.
"""

from gradgate.torch_compat._backward import (
    foreach_add_,
    foreach_clamp_max_,
    foreach_clamp_min_,
    foreach_mul_,
    foreach_norm,
    foreach_zero_,
    run_backward,
    transforming,
)
from gradgate.torch_compat._graphs import (
    next_node_number,
    node_number,
    node_shape,
    reads_losses,
    saved_tensor,
    sparse_tensor,
    stack_formatter,
    stored_stack,
    tensor_version,
    view_base,
)
from gradgate.torch_compat._memory import (
    fake_errors_unlogged,
    fake_tensors,
    op_schema,
    storage_key,
)
from gradgate.torch_compat._modes import (
    anything_compiled,
    as_torch_itself,
    compiler_is_loaded,
    dispatch_modes,
    reuses_gradients,
    uncompiled,
)
from gradgate.torch_compat._modules import (
    OWN_BUFFERS,
    OWN_MODULES,
    OWN_PARAMETERS,
    batch_norm_classes,
    buffers_of,
    compiled_in_place,
    has_forward_hooks,
    inner_milestones,
    inner_schedulers,
    move_hook,
    parameters_of,
    unsaved_buffers,
    without_hooks,
)
from gradgate.torch_compat._private import Private, unseen
from gradgate.torch_compat._python import (
    before_spawned,
    end_threads,
    flush_open_files,
    get_signal_handler,
    process_work,
    run_exit_functions,
    run_module_as_main,
    set_signal_handler,
)
from gradgate.torch_compat._ranks import (
    default_store,
    forget_gathered,
    fsdp_records,
    fully_sharded,
    gathered_parameter,
    is_dtensor,
    reset_pass,
    reset_reducer,
    running_wrapper,
)

__all__ = [
    "OWN_BUFFERS",
    "OWN_MODULES",
    "OWN_PARAMETERS",
    "Private",
    "anything_compiled",
    "as_torch_itself",
    "batch_norm_classes",
    "before_spawned",
    "buffers_of",
    "compiled_in_place",
    "compiler_is_loaded",
    "default_store",
    "dispatch_modes",
    "end_threads",
    "fake_errors_unlogged",
    "fake_tensors",
    "flush_open_files",
    "foreach_add_",
    "foreach_clamp_max_",
    "foreach_clamp_min_",
    "foreach_mul_",
    "foreach_norm",
    "foreach_zero_",
    "forget_gathered",
    "fsdp_records",
    "fully_sharded",
    "gathered_parameter",
    "get_signal_handler",
    "has_forward_hooks",
    "inner_milestones",
    "inner_schedulers",
    "is_dtensor",
    "move_hook",
    "next_node_number",
    "node_number",
    "node_shape",
    "op_schema",
    "parameters_of",
    "process_work",
    "reads_losses",
    "reset_pass",
    "reset_reducer",
    "reuses_gradients",
    "run_backward",
    "run_exit_functions",
    "run_module_as_main",
    "running_wrapper",
    "saved_tensor",
    "set_signal_handler",
    "sparse_tensor",
    "stack_formatter",
    "storage_key",
    "stored_stack",
    "tensor_version",
    "transforming",
    "uncompiled",
    "unsaved_buffers",
    "unseen",
    "view_base",
    "without_hooks",
]
