import importlib
import sys
from pathlib import Path

import pytest

# private: a callback runs once, at the import that it waits for, and the import system stays as it was
from gradgate.checker.running._imports import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "waited_for.py").write_text("value = 1\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    return "waited_for"


def test_it_is_done_once_when_the_module_is_there(module: str) -> None:
    seen: list[object] = []
    before = list(sys.meta_path)
    after_import(module, lambda: seen.append(sys.modules[module].value))
    assert seen == []
    importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [1]
    assert sys.meta_path == before


def test_it_is_done_at_once_for_what_is_imported_already() -> None:
    seen: list[object] = []
    after_import("sys", lambda: seen.append(1))
    assert seen == [1]


def test_several_may_wait_and_the_loader_is_left_as_it_was(module: str) -> None:
    seen: list[object] = []
    after_import(module, lambda: seen.append(1))
    after_import(module, lambda: seen.append(2))
    found = importlib.import_module(module)
    assert sorted(seen) == [1, 2]  # type: ignore[type-var]
    assert found.__spec__ is not None
    assert "exec_module" not in vars(found.__spec__.loader)


def test_a_module_that_is_not_there_is_missed_as_ever() -> None:
    after_import("not_there_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        importlib.import_module("not_there_at_all")
