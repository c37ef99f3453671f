"""Watching what Lightning's ``Trainer.fit`` does with gradients.

Works with ``lightning`` and ``pytorch_lightning``, whichever the script has imported, or else is installed.
"""

from __future__ import annotations

import sys
from typing import Any

from gradgate.integrations._watched import WatchingCallback

# `pip install lightning` brings both; a second one takes seconds to import. Trainers call each other's callbacks.
if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback
else:
    from pytorch_lightning.callbacks import Callback

__all__ = ["WatchGradients"]


class WatchGradients(WatchingCallback, Callback):  # type: ignore[misc]  # of a library that is not always there
    """Watch a fit from its start to its end, and report what is wrong with its gradients.

    A callback for ``Trainer(callbacks=[...])``. It changes nothing that is computed. Where the fit raises, the
    report tells what was seen until then, and the error goes on. Only ``fit`` is watched, not ``validate``,
    ``test`` or ``predict``.

    Args:
        select: report only these rules: codes ("GG103"), beginnings of codes ("GG1") or categories.
        ignore: do not report these.
        raise_on: raise at the end of the fit if there are findings of that severity, or of a worse one.
        output: a file to write the report to; its ending says how: .html, .json, .sarif, .txt.
        show: print the report when the fit ends.

    On several ranks each watches itself; the first one prints and writes its own. ``gradgate check`` in front of
    the command joins what all have seen.

    Raises:
        OptionError: no rule has such a name, ``raise_on`` is something else, or ``output`` cannot be written so.
        FindingError: out of ``fit``, as ``raise_on`` asks.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> watching = WatchGradients(ignore="GG405", raise_on="error")
        >>> trainer = Trainer(callbacks=[watching], logger=False, enable_checkpointing=False)
        >>> watching.report is None  # until trainer.fit(...)
        True
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to watch: before the optimizers are made."""
        if stage == "fit":
            self._watched.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End, and report."""
        self._watched.end("finished", first_rank=trainer.is_global_zero)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End where the fit raises, and report what was seen until then."""
        self._watched.end("failed", first_rank=trainer.is_global_zero)
