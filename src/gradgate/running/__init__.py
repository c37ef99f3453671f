"""Run a program under watch as python runs it, in all its processes. Nothing here imports torch."""

from gradgate.running._children import prepare_child
from gradgate.running._script import How, Program
from gradgate.running._watched_run import WatchedRun

__all__ = ["How", "Program", "WatchedRun", "prepare_child"]
