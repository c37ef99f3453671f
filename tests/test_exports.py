"""A name is public because it stands in ``__all__``, and nothing else is to be seen."""

import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

import gradgate

PACKAGES = [
    import_module(f"gradgate.{found.name}")
    for found in pkgutil.iter_modules(gradgate.__path__)
    if found.ispkg and not found.name.startswith("_")
]


def visible(module: ModuleType) -> list[str]:
    """Return what a user sees when they complete ``module.``: public names, less the packages inside it."""
    packages = {found.name for found in pkgutil.iter_modules(module.__path__)}
    # What is no identifier is what pytest puts into modules for its assertions.
    names = (name for name in dir(module) if name.isidentifier() and not name.startswith("_"))
    return sorted(name for name in names if name not in packages)


@pytest.mark.parametrize("module", [gradgate, *PACKAGES], ids=lambda module: module.__name__)
def test_what_is_visible_is_what_is_exported(module: ModuleType) -> None:
    packages = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert visible(module) == sorted(set(module.__all__) - packages - {"__version__"})


@pytest.mark.parametrize("module", [gradgate, *PACKAGES], ids=lambda module: module.__name__)
def test_every_exported_name_exists_once(module: ModuleType) -> None:
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_name_that_leaks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradgate, "leaked", 1, raising=False)
    assert "leaked" in visible(gradgate)
