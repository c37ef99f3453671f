"""Determines which ranks train together, and how, before a window begins."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch.distributed as dist
from torch import Tensor, nn

from gradgate.errors import OptionError, RankError
from gradgate.options import check_choice
from gradgate.ranks._coordinator import ALONE, Coordinator, Ranks
from gradgate.ranks._ddp import Replicated, check_wrappers, wrappers_in
from gradgate.ranks._fsdp import FullySharded
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._reduction import group_of, named, processes_of, reductions
from gradgate.ranks._status_exchange import check_agreement
from gradgate.torch_compat import fsdp_records, fully_sharded, is_dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Sync: TypeAlias = Literal["last", "every"]
"""When gradients are all-reduced."""

RanksOption: TypeAlias = "dist.ProcessGroup | DeviceMesh | Literal[False] | None"
"""Ranks that train together: a process group, a mesh of one dimension, or False for this process alone.

None stands for the processes over which wrappers reduce gradients, or for all processes if there is no wrapper.
"""

_AVAILABLE = dist.is_available()  # a property of torch's build
_OPTIONS = ("clip_norm", "clip_value", "nonfinite", "clear")


class RankSetup:
    """Makes the coordinator of an accumulator's windows."""

    def __init__(self, ranks: RanksOption, sync: Sync) -> None:
        check_choice("Accumulator", "sync", sync, ("last", "every"))
        if not (ranks is None or ranks is False or _AVAILABLE):
            raise OptionError(
                "Accumulator: ranks is given, but this torch was built without torch.distributed. "
                "Leave ranks out, or install a torch that has torch.distributed."
            )
        self._option, self._sync = ranks, sync
        self._ranks: RankGroup | None = None
        self._agreed: Sequence[Tensor] = ()  # the parameters that all ranks have agreed on
        self._roots: Sequence[nn.Module] = ()  # the modules that contain them

    def position(self, settings: Any) -> tuple[int, int]:
        """Return this process's rank, and the number of ranks."""
        ranks = self._find_ranks(settings.parameters, settings)[0] if _initialized() else None
        return (0, 1) if ranks is None else (ranks.rank, ranks.count)

    def coordinator(
        self, parameters: Sequence[Tensor], settings: Any, *, may_replay: bool = False
    ) -> Coordinator:
        """Return the coordinator of the next window.

        The first call, and each call after parameters have changed, checks that all ranks agree and that every
        parameter is in a module of ``model=``.
        """
        if not _initialized():
            return ALONE
        models = settings.models
        agreed = len(parameters) == len(self._agreed) and all(map(is_, parameters, self._agreed))
        known = agreed and models.roots is self._roots
        ranks, error = (self._ranks, None) if known else self._find_ranks(parameters, settings)
        modules = list(models)
        if ranks is None or (ranks.count == 1 and not any(map(is_dtensor, parameters))):
            if not known:
                check_wrappers(modules)
            self._agreed, self._roots = parameters, models.roots
            return ALONE
        neighbours, sharded = models.neighbours(), fully_sharded(modules)
        others = _unsharded(parameters, sharded)
        if not known:
            for module in sharded:
                module.reshard()  # after a forward pass, its parameters are gathered copies
            error = error or _error_of(parameters, others, modules, settings, ranks)
            if not agreed:
                check_agreement(ranks, {**_facts(parameters, settings), "sync": self._sync}, error)
            elif error is not None:
                raise error
        self._agreed, self._roots = parameters, models.roots
        wrapper: Replicated | FullySharded
        if len(others) < len(parameters):
            everywhere = [*sharded, *fully_sharded(neighbours)]
            wrapper = FullySharded(ranks, parameters, everywhere, every=self._sync == "every")
        else:
            wrapper = Replicated(ranks, parameters, models.roots, modules, neighbours)
        return Ranks(ranks, wrapper, may_replay=may_replay)

    def _find_ranks(
        self, parameters: Sequence[Tensor], settings: Any
    ) -> tuple[RankGroup | None, RankError | None]:
        """Return the ranks over which gradients and counts are added, and an error if ``ranks=`` names others.

        If a wrapper reduces the gradients, these are its processes. Returns no ranks if this process trains alone.
        """
        models, error = settings.models, None
        reduced = {reduction.processes: reduction for reduction in reductions(parameters, list(models))}
        if len(reduced) > 1:
            first, second = [
                f"{models.name(reduction.wrapper)} over {named(processes)}"
                for processes, reduction in list(reduced.items())[:2]
            ]
            raise RankError(
                f"update: gradients are reduced by {first}, and by {second}, so they are sums over different "
                "numbers of items. Wrap these modules over the same processes, or give each its own accumulator."
            )
        given = _processes_given(self._option)
        if not reduced:
            if self._option is False:
                self._ranks = None
                return None, None
            group = _group(self._option)
        else:
            ((processes, reduction),) = reduced.items()
            if given is not None and given != processes:
                error = RankError(
                    f"update: ranks= names {named(given)}, but {models.name(reduction.wrapper)} averages gradients "
                    f"over {named(processes)} in each backward pass. Gradients and counts must be added over the "
                    "same processes. Leave ranks= out: these processes then train together."
                )
                if len(given) == 1:  # the other processes may have no accumulator
                    raise error
            group = group_of(reduction)
        if self._ranks is None or sorted(self._ranks.processes) != list(processes_of(group)):
            self._ranks = RankGroup(group)
        return self._ranks, error


def _initialized() -> bool:
    return _AVAILABLE and dist.is_initialized()


def _error_of(
    parameters: Sequence[Tensor],
    others: Sequence[Tensor],
    modules: Sequence[nn.Module],
    settings: Any,
    ranks: RankGroup,
) -> RankError | None:
    """Return why these parameters cannot be trained over these ranks, if they cannot."""
    try:
        check_wrappers(modules, suspended=len(others) == len(parameters))
        if any(map(is_dtensor, others)):
            raise RankError(
                "update: parameters are sharded over ranks, but not by fully_shard on a module in model=. Pass the "
                "module: Accumulator(optimizer, model=model), with fully_shard, DistributedDataParallel, or "
                "parameters without a wrapper."
            )
        if len(others) < len(parameters):
            _check_not_wrapped(others, modules)
        _check_covered(parameters, settings, ranks)
    except RankError as error:
        return error
    return None


def _unsharded(parameters: Sequence[Tensor], sharded: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Return the owned parameters that no ``fully_shard`` has sharded."""
    if not sharded:
        return parameters
    shards = {id(shard.sharded_param) for module in sharded for shard in fsdp_records(module)}
    return [parameter for parameter in parameters if id(parameter) not in shards]


def _check_not_wrapped(others: Sequence[Tensor], modules: Sequence[nn.Module]) -> None:
    """Raise RankError if a wrapper averages the gradients of parameters that are not sharded."""
    wrapped = {id(parameter) for wrapper in wrappers_in(modules) for parameter in wrapper.parameters()}
    if not wrapped.isdisjoint(map(id, others)):
        raise RankError(
            "update: some modules are under fully_shard and others under DistributedDataParallel, which "
            "averages gradients in each backward pass. Remove DistributedDataParallel: the update adds these "
            "gradients over ranks."
        )


def _check_covered(parameters: Sequence[Tensor], settings: Any, ranks: RankGroup) -> None:
    """Raise RankError if an owned parameter is in no module of ``model=``, so that its wrapper is unknown."""
    covered = {id(parameter) for parameter in settings.models.parameters()}
    missing = [parameter for parameter in parameters if id(parameter) not in covered]
    if not missing:
        return
    if not settings.models.roots:
        raise RankError(
            f"update: {ranks.count} ranks train together, but model is not given, so the wrapper that synchronizes "
            "gradients is unknown. Pass the module that the loop calls, including its wrapper: "
            "Accumulator(optimizer, model=model). If each process trains alone, pass ranks=False."
        )
    raise RankError(
        f"update: {len(missing)} of {len(parameters)} parameters are in no module of model=: "
        f"{settings.names(missing)}. With several ranks, their wrapper must be known. Pass all modules: "
        "model=[encoder, head]; for a single parameter: model=[encoder, torch.nn.ParameterList([scale])]."
    )


def _facts(parameters: Sequence[Tensor], settings: Any) -> dict[str, str | float]:
    """Return the facts that must be the same on all ranks."""
    whole = [parameter.detach() for parameter in parameters if not is_dtensor(parameter)]
    groups = [group for optimizer in settings.optimizers for group in optimizer.param_groups]
    return {
        "the number of parameters": str(len(parameters)),
        "the shapes of parameters": _brief([tuple(parameter.shape) for parameter in parameters]),
        "the values of parameters (the sum of their absolute values)": sum(
            float(tensor.double().abs().sum()) for tensor in whole
        ),
        "optimizers": ", ".join(type(optimizer).__name__ for optimizer in settings.optimizers),
        "learning rates": _brief([group.get("lr") for group in groups]),
        **{name: str(getattr(settings, name)) for name in _OPTIONS},
        "a scaler": "not given" if settings.scaler is None else "given",
    }


def _brief(items: list[Any]) -> str:
    text = str([float(item) if isinstance(item, Tensor) else item for item in items])
    return text if len(text) <= 60 else f"{text[:40]}... ({len(items)}, {zlib.crc32(text.encode()):x})"


def _group(option: Any) -> dist.ProcessGroup | None:
    if option is None or option is False or isinstance(option, dist.ProcessGroup):
        return option or None
    if option is dist.GroupMember.NON_GROUP_MEMBER:
        raise OptionError(
            "Accumulator: ranks is a process group that this process does not belong to. Pass the group of this "
            "process, or ranks=False if it trains alone."
        )
    if option.ndim != 1:
        raise OptionError(
            f"Accumulator: ranks is a mesh of {option.ndim} dimensions {option.mesh_dim_names}. Pass the dimension "
            "that data is split along: ranks=mesh['data']. Under fully_shard, leave ranks out."
        )
    group: dist.ProcessGroup = option.get_group()
    return group


def _processes_given(option: RanksOption) -> tuple[int, ...] | None:
    """Return the processes that ``ranks=`` names, by their ranks among all processes. None if it is left out."""
    if option is None:
        return None
    return (dist.get_rank(),) if option is False else processes_of(_group(option))
