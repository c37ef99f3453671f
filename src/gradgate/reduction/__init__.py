"""The same sum over ranks: what each rank says, gradients added up, engines held back meanwhile."""

from gradgate.reduction._buckets import Buckets
from gradgate.reduction._engines import Engine, Sync
from gradgate.reduction._meeting import Meeting, Said, Status, agree
from gradgate.reduction._ranks import Ranks, is_lost, lost
from gradgate.reduction._sharded import Sharded, engine_of

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
