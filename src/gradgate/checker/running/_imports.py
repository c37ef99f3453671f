"""Do something as soon as a module has been imported, by whomever: nothing is imported before its time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` once, when module ``name`` has been imported; at once, if it is there already."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Waiting(name, act))


class _Waiting:
    """Finds nothing itself: it lets the others find the module, and stands by while that is executed."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._asking:
            return None
        self._asking = True  # the finders below may be others that wait, and ask in turn
        try:
            specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next((one for one in specs if one is not None), None)
        finally:
            self._asking = False
        if spec is not None:
            self._stand_by(spec)
        return spec

    def _stand_by(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the module keeps its loader, which is as it was
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._act()

        loader.exec_module = execute_and_act  # type: ignore[method-assign]
