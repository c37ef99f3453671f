"""All private names of torch and CPython that gradgate uses. No other file may use one.

Any release may change a private name. Each :class:`Private` states the purpose of its names, and the replacement if
they are missing or have changed. It tests the names once, on first use and never at import. The replacement is
public code with the same result, or else a clear error. :func:`unseen` returns the observations that the checker
can no longer make. Every report shows them, together with the rules that need them.

Some names begin with an underscore but are documented, so they are not private: the values that a node saves
(``node._saved_self``: https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors),
``torch._foreach_norm`` (https://docs.pytorch.org/docs/stable/torch.html#foreach-operations), ``sys._getframe``,
``torch.utils._python_dispatch.TorchDispatchMode`` (https://docs.pytorch.org/docs/stable/notes/extending.html),
``sys._current_frames``, ``os._exit``, and the methods of named tuples.
"""

from gradgate.torch_compat._backward import (
    backward_pass_number,
    run_backward,
    transforming,
)
from gradgate.torch_compat._graphs import (
    call_node,
    is_packed,
    next_node_number,
    node_number,
    node_shape,
    node_zeros,
    reads_losses,
    saved_tensor,
    sparse_tensor,
    stack_formatter,
    stored_stack,
    tensor_version,
    view_base,
)
from gradgate.torch_compat._memory import (
    fake_tensors,
    op_schema,
    owns_memory,
    storage_key,
)
from gradgate.torch_compat._modes import (
    anything_compiled,
    as_torch_itself,
    compiler_is_loaded,
    dispatch_modes,
    reuses_gradients,
    top_function_mode,
    uncompiled,
)
from gradgate.torch_compat._modules import (
    OWN_BUFFERS,
    OWN_MODULES,
    OWN_PARAMETERS,
    buffers_of,
    compiled_in_place,
    has_forward_hooks,
    move_hook,
    parameters_of,
    sequence_of,
    unsaved_buffers,
)
from gradgate.torch_compat._private import Private, unseen
from gradgate.torch_compat._python import (
    before_spawned,
    end_threads,
    flush_open_files,
    get_signal_handler,
    process_target,
    run_exit_functions,
    run_module_as_main,
    set_signal_handler,
)
from gradgate.torch_compat._ranks import (
    data_mesh,
    default_store,
    forget_gathered,
    fsdp_records,
    fully_sharded,
    gathered_parameter,
    in_join,
    is_dtensor,
    is_replicated,
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
    "backward_pass_number",
    "before_spawned",
    "buffers_of",
    "call_node",
    "compiled_in_place",
    "compiler_is_loaded",
    "data_mesh",
    "default_store",
    "dispatch_modes",
    "end_threads",
    "fake_tensors",
    "flush_open_files",
    "forget_gathered",
    "fsdp_records",
    "fully_sharded",
    "gathered_parameter",
    "get_signal_handler",
    "has_forward_hooks",
    "in_join",
    "is_dtensor",
    "is_packed",
    "is_replicated",
    "move_hook",
    "next_node_number",
    "node_number",
    "node_shape",
    "node_zeros",
    "op_schema",
    "owns_memory",
    "parameters_of",
    "process_target",
    "reads_losses",
    "reset_pass",
    "reset_reducer",
    "reuses_gradients",
    "run_backward",
    "run_exit_functions",
    "run_module_as_main",
    "running_wrapper",
    "saved_tensor",
    "sequence_of",
    "set_signal_handler",
    "sparse_tensor",
    "stack_formatter",
    "storage_key",
    "stored_stack",
    "tensor_version",
    "top_function_mode",
    "transforming",
    "uncompiled",
    "unsaved_buffers",
    "unseen",
    "view_base",
]
