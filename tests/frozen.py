"""Hides what the suite has imported from the garbage collector, in each process that runs tests.

Torch, its compiler and the trainers are two million objects. The collector would visit them again and again, and so
would every watcher that looks for live modules: an eighth of a second for each script that is watched.

Nothing is imported here but the standard library: the interpreter that is forked (interpreter.py) freezes too.
"""

import gc


class Frozen:
    """The objects that were frozen by the suite itself. ``gc.get_freeze_count`` counts only what a test freezes.

    No module that a test trains is among the suite's own, so a watcher misses none. The count itself takes a
    twentieth of a second, as it walks over all that is frozen: nobody counts unless a test has frozen something.
    """

    def __init__(self) -> None:
        self._freeze, self._unfreeze, self._count = gc.freeze, gc.unfreeze, gc.get_freeze_count
        self._ours: int | None = None  # how many were frozen before a test froze more; None: none has
        gc.freeze, gc.unfreeze, gc.get_freeze_count = self._freeze_more, self._thaw, self._of_tests

    def freeze(self, generation: int = 2) -> None:
        """Collect the garbage up to this generation, and freeze all that is alive."""
        gc.collect(generation)
        self._freeze()
        self._ours = None

    def unfreeze(self) -> None:
        """Freeze nothing, until :meth:`freeze` is called again."""
        self._unfreeze()
        self._ours = None

    def _freeze_more(self) -> None:
        if self._ours is None:
            self._ours = self._count()
        self._freeze()

    def _thaw(self) -> None:
        self._unfreeze()
        self._ours = 0

    def _of_tests(self) -> int:
        return 0 if self._ours is None else max(0, self._count() - self._ours)


FROZEN = Frozen()
