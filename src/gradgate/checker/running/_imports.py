"""Run a function as soon as a module has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` after the import of the module ``name``, or now if it has been imported."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Waiting(name, act))


class _Waiting:
    """A finder that delegates to the other finders, and calls ``act`` after the module was executed."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._asking:
            return None
        self._asking = True  # prevents recursion: other finders of this class call this one
        try:
            specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next((each for each in specs if each is not None), None)
        finally:
            self._asking = False
        if spec is not None:
            self._act_after(spec)
        return spec

    def _act_after(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the module keeps this loader, so restore it
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._act()

        loader.exec_module = execute_and_act  # type: ignore[method-assign]
