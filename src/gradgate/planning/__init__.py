"""Estimates or measures the memory that training takes, and splits batches so that they fit."""

from gradgate.planning._micro_batches import MicroBatch, Split
from gradgate.planning._peak_memory import peak_memory
from gradgate.planning._plan import Plan, plan

__all__ = ["MicroBatch", "Plan", "Split", "peak_memory", "plan"]
