"""Modules and learning-rate schedulers."""

from __future__ import annotations

from collections import OrderedDict
from inspect import unwrap
from typing import Any

from gradgate.torch_compat._private import Private, torch

# The dictionaries in which a module keeps its own parameters, buffers and submodules.
OWN_PARAMETERS, OWN_BUFFERS, OWN_MODULES = "_parameters", "_buffers", "_modules"

parameters_of: Private[[Any], dict[str, Any]] = Private(
    "torch.nn.Module._parameters",
    "tell which parameters a module holds",
    find=lambda: lambda module: module._parameters,
    instead=lambda module: dict(module.named_parameters(recurse=False, remove_duplicate=False)),
    works=lambda of: (
        [*of(torch().nn.LayerNorm(1))] == ["weight", "bias"]
    ),  # draws no numbers, as a Linear would
)

buffers_of: Private[[Any], dict[str, Any]] = Private(
    "torch.nn.Module._buffers",
    "keep a frozen module's buffers unchanged",
    find=lambda: lambda module: module._buffers,  # torch.compile follows it
    works=lambda of: "running_mean" in of(torch().nn.BatchNorm1d(1)),
)

unsaved_buffers: Private[[Any], set[str]] = Private(
    "torch.nn.Module._non_persistent_buffers_set",
    "distinguish a frozen module's caches from its other buffers",
    find=lambda: lambda module: module._non_persistent_buffers_set,
    works=lambda of: of(torch().nn.BatchNorm1d(1)) == set(),
)

has_forward_hooks: Private[[Any], bool] = Private(
    "torch.nn.Module._forward_hooks or _forward_pre_hooks",
    "tell whether a frozen module has hooks",
    find=lambda: lambda module: bool(module._forward_hooks or module._forward_pre_hooks),
    instead=lambda module: True,  # so that its buffers are protected in any case
    works=lambda has: has(torch().nn.ReLU()) is False,
)


def _move_hook(handle: Any, *, last: bool) -> None:
    handle.hooks_dict_ref().move_to_end(handle.id, last=last)


def _moves_hooks(move: Any) -> bool:
    hooks: OrderedDict[int, str] = OrderedDict()
    handles = [torch().utils.hooks.RemovableHandle(hooks) for _ in range(2)]
    hooks.update({handle.id: "hook" for handle in handles})
    move(handles[1], last=False)
    return [*hooks] == [handles[1].id, handles[0].id]


# Moves a hook before or, with ``last``, behind the other hooks of its kind.
move_hook: Private[..., None] = Private(
    "torch.utils.hooks.RemovableHandle.hooks_dict_ref",
    "let an optimizer's other hooks see a parameter that trains only some of its rows",
    find=lambda: _move_hook,
    works=_moves_hooks,
)

compiled_in_place: Private[[Any], bool] = Private(
    "torch.nn.Module._compiled_call_impl",
    "tell whether a module was compiled in place",
    find=lambda: lambda module: module._compiled_call_impl is not None,
    instead=lambda module: False,
    works=lambda compiled: compiled(torch().nn.ReLU()) is False,
)


_PARTS = ("_schedulers", "_milestones")


def _parts_of(scheduler: Any) -> list[list[Any]]:
    parts = [getattr(scheduler, name, None) for name in _PARTS]
    return [part if isinstance(part, list) else [] for part in parts]


def _keeps_its_parts(_: Any) -> bool:
    from torch.optim.lr_scheduler import SequentialLR

    names = unwrap(SequentialLR.__init__).__code__.co_names  # the checker may have wrapped it
    return {*_PARTS} <= {*names}


# The schedulers of a SequentialLR and the steps at which they begin, but for the first; [] for other schedulers.
sequence_of: Private[[Any], list[list[Any]]] = Private(
    "torch.optim.lr_scheduler.SequentialLR._schedulers or _milestones",
    "tell when a SequentialLR has finished",
    find=lambda: _parts_of,
    instead=lambda scheduler: [[], []],
    works=_keeps_its_parts,
    rules=("GG301",),
)
