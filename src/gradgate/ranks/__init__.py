"""Training over several ranks: exchanges statuses, all-reduces gradients once, and suspends DDP and FSDP2."""

from gradgate.ranks._coordinator import ReplayError, Sync
from gradgate.ranks._fsdp import ShardedCoordinator
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._setup import RankSetup, RanksOption
from gradgate.ranks._single_process import ALONE, Coordinator
from gradgate.ranks._status_exchange import RankStatus, Totals

__all__ = [
    "ALONE",
    "Coordinator",
    "RankGroup",
    "RankSetup",
    "RankStatus",
    "RanksOption",
    "ReplayError",
    "ShardedCoordinator",
    "Sync",
    "Totals",
]
