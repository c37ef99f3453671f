"""Run a program the way Python does, and watch all its processes. Nothing here imports torch."""

from gradgate.checker.running._children import prepare_child
from gradgate.checker.running._imports import after_import
from gradgate.checker.running._notebook import check_notebook
from gradgate.checker.running._script import How, Program
from gradgate.checker.running._watched_run import WatchedRun

__all__ = ["How", "Program", "WatchedRun", "after_import", "check_notebook", "prepare_child"]
