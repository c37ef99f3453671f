"""Record an unmodified script's training events. No other package patches torch."""

from gradgate.checker.recording._recorder import StopRun, StopTask
from gradgate.checker.recording._watcher import Watcher

__all__ = ["StopRun", "StopTask", "Watcher"]
