"""Every test can fail: it asserts something, itself or in a function of the tests that it calls.

That warnings are errors holds for all tests, so a test of which this is the point says it with ``no_warning()``.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
CHECKS = {"raises", "warns", "fail", "no_warning"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def called_by(function: Function) -> set[str]:
    """Return the names, without what they are attributes of, that a function calls."""
    called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {
        f.id if isinstance(f, ast.Name) else f.attr for f in called if isinstance(f, ast.Name | ast.Attribute)
    }


@functools.cache
def asserts(function: Function) -> bool:
    """Return whether a function asserts something itself. ``assert_still(...)`` is an assertion, too."""
    return any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function)) or any(
        name in CHECKS or name.startswith("assert_") for name in called_by(function)
    )


def that_assert_nothing(folder: Path) -> Iterator[str]:
    """Yield the tests below a folder that assert nothing. Its scripts are no tests."""
    files = [file for file in sorted(folder.rglob("*.py")) if "scripts" not in file.relative_to(folder).parts]
    functions = [
        (file, node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, Function)
    ]
    sound = {(file, function.name) for file, function in functions if asserts(function)}
    everywhere = {name for _, name in sound}
    of_file: dict[Path, set[str]] = {file: set() for file in files}
    for file, function in functions:
        of_file[file].add(function.name)
    for _ in range(3):  # a helper that calls a helper
        for file, function in functions:
            called = called_by(function)
            if any(
                (file, name) in sound or (name not in of_file[file] and name in everywhere) for name in called
            ):
                sound.add((file, function.name))
        everywhere = {name for _, name in sound}
    for file, function in functions:
        if function.name.startswith("test_") and (file, function.name) not in sound:
            yield f"{file.relative_to(folder).as_posix()}: {function.name}"


def test_every_test_asserts_something() -> None:
    assert list(that_assert_nothing(TESTS)) == []


def test_one_that_asserts_nothing_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "def helper(): assert 1\n"
        "def test_itself(): assert 1\n"
        "def test_by_a_helper(): helper()\n"
        "def test_of_a_warning():\n    with no_warning(): f()\n"
        "def test_nothing(): f()\n",
        "utf-8",
    )
    assert list(that_assert_nothing(tmp_path)) == ["test_a.py: test_nothing"]
