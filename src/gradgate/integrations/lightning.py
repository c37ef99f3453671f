"""Watches what Lightning's ``Trainer.fit`` does with gradients.

Works with ``lightning`` and ``pytorch_lightning``: the one that the script has imported, or else is installed.
"""

from __future__ import annotations

import sys
from typing import Any

from gradgate.integrations._watched import WatchingCallback

# `pip install lightning` installs both, and each accepts callbacks of the other. Importing both takes seconds.
if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback
else:
    from pytorch_lightning.callbacks import Callback

__all__ = ["WatchGradients"]


class WatchGradients(WatchingCallback, Callback):  # type: ignore[misc]  # of a library that is not always there
    """Watch a fit from start to end and report what is wrong with its gradients.

    A callback for ``Trainer(callbacks=[...])``. It does not change the computation. If the fit raises, the report
    covers the time until then, and the error propagates. ``validate``, ``test`` and ``predict`` are not watched.

    Args:
        select: report only these rules: codes ("GG103"), beginnings of codes ("GG1") or categories.
        ignore: do not report these.
        raise_on: raise at the end of the fit if there are findings of this severity or a worse one.
        output: a file to write the report to, in the format of its extension: .html, .json, .sarif or .txt.
        show: print the report when the fit ends.

    On several ranks each watches itself, and the first one prints and writes its own report. ``gradgate check`` in
    front of the command reports on all ranks together.

    Raises:
        OptionError: no rule has such a name, or ``raise_on`` or ``output`` is invalid.
        FindingError: out of ``fit``, as ``raise_on`` asks.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> watching = WatchGradients(ignore="GG405", raise_on="error")
        >>> trainer = Trainer(callbacks=[watching], logger=False, enable_checkpointing=False)
        >>> watching.report is None  # until trainer.fit(...)
        True
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start watching, before the optimizers are created."""
        if stage == "fit":
            self._watched.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop watching and report."""
        self._watched.end("finished", first_rank=trainer.is_global_zero)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching when the fit raises, and report what was seen until then."""
        self._watched.end("failed", first_rank=trainer.is_global_zero)
