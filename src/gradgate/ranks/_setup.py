"""Determines which ranks train together, and how, before a window begins."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradgate.errors import OptionError, RankError, check_choice
from gradgate.ranks._coordinator import RankCoordinator
from gradgate.ranks._ddp import Engine, Sync
from gradgate.ranks._fsdp import ShardedEngine, is_sharded
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._single_process import ALONE, SingleProcess
from gradgate.ranks._status_exchange import check_agreement
from gradgate.torch_compat import fsdp_records

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

RanksOption: TypeAlias = "dist.ProcessGroup | DeviceMesh | Literal[False] | None"
"""Ranks that train together: a process group, a mesh of one dimension, None for all, False for this process."""

_OPTIONS = ("clip_norm", "clip_value", "nonfinite", "accumulate_dtype", "clear")


class Trained(Protocol):
    """The modules and optimizers that the ranks train."""

    @property
    def models(self) -> Any:
        """The modules of ``model=``."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that step their parameters."""

    def names(self, parameters: Sequence[Tensor]) -> str:
        """List some parameters by name."""


class RankSetup:
    """Makes the coordinator of an accumulator's windows.

    Args:
        ranks: the accumulator's option.
        sync: when gradients are all-reduced.
    """

    def __init__(self, ranks: RanksOption, sync: Sync) -> None:
        check_choice("Accumulator", "sync", sync, ("last", "every", "overlap"))
        if not (ranks is None or ranks is False or dist.is_available()):
            raise OptionError(
                "Accumulator: ranks is given, but this torch was built without torch.distributed. "
                "Leave ranks out, or install a torch that has torch.distributed."
            )
        self._option, self._sync = ranks, sync
        self.alone = ranks is False or not dist.is_available()
        """Whether this process trains alone, even if it is part of a process group."""
        self._ranks: RankGroup | None = None
        self._coordinator: RankCoordinator | None = None
        self._checked: Any = None  # the models that have no wrapper of several ranks
        self._known: list[weakref.ref[Any]] = []  # the objects that the coordinator was made for
        self._agreed: list[weakref.ref[Any]] = []  # the parameters that all ranks have agreed on

    def position(self) -> tuple[int, int]:
        """Return this process's rank, and the number of ranks."""
        ranks = self._process_group()
        return (0, 1) if ranks is None else (ranks.rank, ranks.count)

    def check_alone(self, trained: Trained) -> None:
        """Raise RankError if this process trains alone, but a wrapper averages gradients over ranks.

        Checks once, and again after the models were replaced.
        """
        if self._checked is trained.models.roots or not (dist.is_available() and dist.is_initialized()):
            return
        owned = {
            id(p)
            for optimizer in trained.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        for module in trained.models:
            if isinstance(module, DistributedDataParallel):
                over_ranks = dist.get_world_size(module.process_group) > 1
                inside = list(module.parameters()) if over_ranks else []
            else:
                shards = fsdp_records(module) if is_sharded(module) else ()
                inside = [s.sharded_param for s in shards if s.sharded_param.device_mesh.size() > 1]
            if any(id(parameter) in owned for parameter in inside):
                name = trained.models.name(module)
                raise RankError(
                    f"update: this accumulator trains on one rank alone, but {name} averages gradients over "
                    "several ranks in each backward pass. Leave ranks= out, so that all ranks train together, or "
                    "do not wrap the model."
                )
        self._checked = trained.models.roots

    def _process_group(self) -> RankGroup | None:
        if self.alone or not dist.is_initialized():
            return None
        self._ranks = self._ranks or RankGroup(_group(self._option))
        return self._ranks

    def coordinator(self, parameters: Sequence[Tensor], trained: Trained) -> SingleProcess:
        """Return the coordinator of the next window.

        The first call, and each call after parameters or modules have changed, checks that all ranks agree.

        Args:
            parameters: the owned parameters.
            trained: the modules, and the settings that must be the same on all ranks.

        Raises:
            RankError: ranks differ in parameters or settings, or a parameter is in no module of ``model=``.
        """
        ranks = self._process_group()
        if ranks is None or (ranks.count == 1 and not any(hasattr(p, "to_local") for p in parameters)):
            self.check_alone(trained)
            return ALONE
        models = trained.models
        modules, others = list(models), models.neighbours()
        if self._coordinator is None or not _are(self._known, (*parameters, *modules, *others)):
            engine = engine_of(parameters, models.roots, modules, others, ranks, self._sync)
            _check_covered(parameters, trained, ranks)
            before = None if self._coordinator is None else self._coordinator.sharded
            if isinstance(engine, ShardedEngine) and before is not None:
                # Keep the unit: it must be the same on all ranks, and another rank may not rebuild its engine now.
                engine.unit = before.unit
            if not _are(self._agreed, parameters):
                check_agreement(ranks, {**_facts(parameters, trained), "sync": self._sync})
                self._agreed = _references(parameters)
            self._known = _references((*parameters, *modules, *others))
            self._coordinator = RankCoordinator(engine)
        return self._coordinator


def _references(objects: Sequence[Any]) -> list[weakref.ref[Any]]:
    return [weakref.ref(each) for each in objects]


def _are(references: list[weakref.ref[Any]], objects: Sequence[Any]) -> bool:
    """Return whether these are the same objects. Ids are not enough: Python reuses a freed object's id."""
    return len(references) == len(objects) and all(
        reference() is each for reference, each in zip(references, objects, strict=True)
    )


def _check_covered(parameters: Sequence[Tensor], trained: Trained, ranks: RankGroup) -> None:
    """Raise RankError if an owned parameter is in no module of ``model=``, so that its wrapper is unknown."""
    covered = {id(parameter) for parameter in trained.models.parameters()}
    missing = [parameter for parameter in parameters if id(parameter) not in covered]
    if not missing:
        return
    if not trained.models.roots:
        raise RankError(
            f"update: {ranks.count} ranks train together, but model is not given, so the wrapper that synchronizes "
            "gradients is unknown. Pass the module that the loop calls, including its wrapper: "
            "Accumulator(optimizer, model=model). If each process trains alone, pass ranks=False."
        )
    raise RankError(
        f"update: {len(missing)} of {len(parameters)} parameters are in no module of model=: "
        f"{trained.names(missing)}. With several ranks, their wrapper must be known. Pass all modules: "
        "model=[encoder, head]; for a single parameter: model=[encoder, torch.nn.ParameterList([scale])]."
    )


def _facts(parameters: Sequence[Tensor], trained: Trained) -> dict[str, str | float]:
    """Return the facts that must be the same on all ranks."""
    whole = [parameter.detach() for parameter in parameters if not hasattr(parameter, "to_local")]
    groups = [group for optimizer in trained.optimizers for group in optimizer.param_groups]
    return {
        "the number of parameters": str(len(parameters)),
        "the shapes of parameters": _brief([tuple(parameter.shape) for parameter in parameters]),
        "the values of parameters (the sum of their absolute values)": sum(
            float(tensor.double().abs().sum()) for tensor in whole
        ),
        "optimizers": ", ".join(type(optimizer).__name__ for optimizer in trained.optimizers),
        "learning rates": _brief([group.get("lr") for group in groups]),
        **{name: str(getattr(trained, name)) for name in _OPTIONS},
        "a scaler": "given" if getattr(trained, "scaler", None) is not None else "not given",
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


def engine_of(
    parameters: Sequence[Tensor],
    roots: Sequence[nn.Module],
    modules: Sequence[nn.Module],
    neighbours: Sequence[nn.Module],
    ranks: RankGroup,
    sync: Sync,
) -> Engine:
    """Return the engine that controls the parameters' wrapper.

    Args:
        parameters: the parameters that an accumulator owns.
        roots: the modules of ``model=``.
        modules: the roots and all their submodules.
        neighbours: the modules of other accumulators.
        ranks: the ranks that train together.
        sync: when gradients are all-reduced. "every" makes a difference only for sharded parameters, and "overlap"
            only for others.

    Raises:
        RankError: a wrapper cannot be suspended.
    """
    sharded: list[Any] = [module for module in modules if is_sharded(module)]
    for module in sharded:
        module.reshard()  # after a forward pass, its parameters are gathered copies
    shards = {id(shard.sharded_param) for module in sharded for shard in fsdp_records(module)}
    others = [parameter for parameter in parameters if id(parameter) not in shards]
    if any(hasattr(parameter, "full_tensor") for parameter in others):
        raise RankError(
            "update: parameters are sharded over ranks, but not by fully_shard on a module in model=. Pass the "
            "module: Accumulator(optimizer, model=model), with fully_shard, DistributedDataParallel, or parameters "
            "without a wrapper."
        )
    if len(others) < len(parameters):
        owned = {id(parameter) for parameter in others}
        wrappers = [module for module in modules if isinstance(module, DistributedDataParallel)]
        if any(id(parameter) in owned for wrapper in wrappers for parameter in wrapper.parameters()):
            raise RankError(
                "update: some modules are under fully_shard and others under DistributedDataParallel, which would "
                "average in each backward pass. Leave those others without a wrapper: the update adds their "
                "gradients over ranks."
            )
        everywhere = [*sharded, *(module for module in neighbours if is_sharded(module))]
        return ShardedEngine(
            ranks,
            parameters,
            list({id(module): module for module in everywhere}.values()),
            every=sync == "every",
        )
    return Engine(ranks, parameters, roots, modules, neighbours, sync)
