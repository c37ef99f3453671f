"""Training over several ranks: exchanges statuses, all-reduces gradients once, and suspends DDP and FSDP2."""

from gradgate.ranks._coordinator import ALONE, Coordinator, ReplayError
from gradgate.ranks._fsdp import FullySharded
from gradgate.ranks._process_group import RankGroup
from gradgate.ranks._setup import RankSetup, RanksOption, Sync
from gradgate.ranks._status_exchange import RankStatus, Totals

__all__ = [
    "ALONE",
    "Coordinator",
    "FullySharded",
    "RankGroup",
    "RankSetup",
    "RankStatus",
    "RanksOption",
    "ReplayError",
    "Sync",
    "Totals",
]
