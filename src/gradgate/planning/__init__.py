"""What a piece of work takes in memory, foreseen or measured; and the cut that fits."""

from gradgate.planning._micro_batches import Cut, MicroBatch
from gradgate.planning._peak import peak_memory
from gradgate.planning._plan import Plan, plan

__all__ = ["Cut", "MicroBatch", "Plan", "peak_memory", "plan"]
