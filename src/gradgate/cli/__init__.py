"""The command ``gradgate``: runs a script under watch, judges what was seen, and reports."""

from gradgate.cli._main import main

__all__ = ["main"]
