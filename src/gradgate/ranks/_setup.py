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
from gradgate.ranks._coordinator import RankCoordinator, Sync
from gradgate.ranks._ddp import wrappers_in
from gradgate.ranks._fsdp import ShardedCoordinator
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._single_process import ALONE, Coordinator
from gradgate.ranks._status_exchange import check_agreement
from gradgate.torch_compat import fsdp_records, fully_sharded, is_dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

RanksOption: TypeAlias = "dist.ProcessGroup | DeviceMesh | Literal[False] | None"
"""Ranks that train together: a process group, a mesh of one dimension, None for all, False for this process."""

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
        # Whether this process trains alone, even if it is part of a process group.
        self._alone = ranks is False or not _AVAILABLE
        self._ranks: RankGroup | None = None
        self._agreed: Sequence[Tensor] = ()  # the parameters that all ranks have agreed on
        self._roots: Sequence[nn.Module] = ()  # the modules that contain them

    def position(self) -> tuple[int, int]:
        """Return this process's rank, and the number of ranks."""
        ranks = self._process_group()
        return (0, 1) if ranks is None else (ranks.rank, ranks.count)

    def _check_alone(self, settings: Any) -> None:
        """Raise RankError if a wrapper averages gradients over ranks. Checks again if the models were replaced."""
        models = settings.models
        if self._roots is models.roots:
            return
        modules, owned = list(models), set(map(id, settings.parameters))
        inside: list[tuple[nn.Module, list[Tensor]]] = [
            (wrapper, list(wrapper.parameters()))
            for wrapper in wrappers_in(modules)
            if dist.get_world_size(wrapper.process_group) > 1
        ]
        for module in fully_sharded(modules):
            shards = [shard.sharded_param for shard in fsdp_records(module)]
            inside.append((module, [shard for shard in shards if shard.device_mesh.size() > 1]))
        for module, parameters in inside:
            if not owned.isdisjoint(map(id, parameters)):
                raise RankError(
                    f"update: this accumulator trains on one rank alone, but {models.name(module)} averages "
                    "gradients over several ranks in each backward pass. Leave ranks= out, so that all ranks train "
                    "together, or do not wrap the model."
                )
        self._roots = models.roots

    def _process_group(self) -> RankGroup | None:
        if self._alone or not dist.is_initialized():
            return None
        self._ranks = self._ranks or RankGroup(_group(self._option))
        return self._ranks

    def coordinator(
        self, parameters: Sequence[Tensor], settings: Any, *, may_replay: bool = False
    ) -> Coordinator:
        """Return the coordinator of the next window.

        The first call, and each call after parameters have changed, checks that all ranks agree and that every
        parameter is in a module of ``model=``.
        """
        if not _AVAILABLE or not dist.is_initialized():
            return ALONE
        ranks = self._process_group()
        if ranks is None or (ranks.count == 1 and not any(map(is_dtensor, parameters))):
            self._check_alone(settings)
            return ALONE
        models = settings.models
        agreed = len(parameters) == len(self._agreed) and all(map(is_, parameters, self._agreed))
        known = agreed and models.roots is self._roots
        modules, neighbours = list(models), models.neighbours()
        sharded = fully_sharded(modules)
        others = _unsharded(parameters, sharded)
        if not known and any(map(is_dtensor, others)):
            raise RankError(
                "update: parameters are sharded over ranks, but not by fully_shard on a module in model=. Pass the "
                "module: Accumulator(optimizer, model=model), with fully_shard, DistributedDataParallel, or "
                "parameters without a wrapper."
            )
        coordinator: RankCoordinator
        if len(others) < len(parameters):
            _check_not_wrapped(others, modules)
            everywhere, every = [*sharded, *fully_sharded(neighbours)], self._sync == "every"
            coordinator = ShardedCoordinator(
                ranks, parameters, everywhere, every=every, may_replay=may_replay
            )
        else:
            coordinator = RankCoordinator(
                ranks, parameters, models.roots, modules, neighbours, may_replay=may_replay
            )
        if not known:
            for module in sharded:
                module.reshard()  # after a forward pass, its parameters are gathered copies
            _check_covered(parameters, settings, ranks)
        if not agreed:
            check_agreement(ranks, {**_facts(parameters, settings), "sync": self._sync})
        self._agreed, self._roots = parameters, models.roots
        return coordinator


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


def _group(option: RanksOption) -> dist.ProcessGroup | None:
    if option is None or option is False or isinstance(option, dist.ProcessGroup):
        return option or None
    if option.ndim != 1:
        raise OptionError(
            f"Accumulator: ranks is a mesh of {option.ndim} dimensions {option.mesh_dim_names}. Pass the dimension "
            "that data is split along: ranks=mesh['data']."
        )
    return option.get_group()
