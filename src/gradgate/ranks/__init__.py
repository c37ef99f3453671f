"""The same sum over ranks: what each rank says, gradients added up, engines held back meanwhile."""

from gradgate.ranks._ddp import Engine, Sync
from gradgate.ranks._fsdp import Sharded, engine_of
from gradgate.ranks._overlap import Buckets
from gradgate.ranks._process_group import Ranks, is_lost, lost
from gradgate.ranks._status_exchange import Meeting, Said, Status, agree

__all__ = [
    "Buckets",
    "Engine",
    "Meeting",
    "Ranks",
    "Said",
    "Sharded",
    "Status",
    "Sync",
    "agree",
    "engine_of",
    "is_lost",
    "lost",
]
