"""The ``gradgate`` command, which runs and watches a script, applies the rules, and reports."""

from gradgate.cli._main import main

__all__ = ["main"]
