"""What rules ask of a run: histories of gradients, windows, and the user's source. Nothing here imports torch."""

from gradgate.checker.analysis._history import Contribution, StepWindow
from gradgate.checker.analysis._loss_weights import Share, of_window
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._statement import Statement

__all__ = ["Contribution", "Run", "Share", "Statement", "StepWindow", "of_window"]
