"""The watcher: makes events from an unmodified script. The only room that patches torch."""

from gradgate.watcher._recorder import StopRun, StopTask
from gradgate.watcher._watcher import Watcher

__all__ = ["StopRun", "StopTask", "Watcher"]
