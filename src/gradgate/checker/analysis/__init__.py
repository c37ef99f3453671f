"""Data that rules read about a run: gradient histories, windows and the user's source. None of it needs torch."""

from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._oracle import Share, of_window
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement

__all__ = ["Contribution", "Run", "Share", "Statement", "StepWindow", "of_window"]
