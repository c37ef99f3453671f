"""The watcher: makes events from an unmodified script. The only package that patches torch."""

from gradgate.checker.recording._recorder import StopRun, StopTask
from gradgate.checker.recording._watcher import Watcher

__all__ = ["StopRun", "StopTask", "Watcher"]
