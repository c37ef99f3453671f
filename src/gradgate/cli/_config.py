"""Read ``[tool.gradgate]`` from the nearest pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from gradgate.errors import OptionError

Format: TypeAlias = Literal["text", "json", "sarif", "html"]
"""The formats of a report."""

_FORMATS = get_args(Format)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# For each option: the test of its value, and what to write instead of a wrong value.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "baseline": (
        lambda value: isinstance(value, str) and value != "",
        'Write the path of a file: baseline = "gradgate-baseline.json".',
    ),
    "select": (_are_names, 'Write a list of strings: select = ["GG103"].'),
    "ignore": (_are_names, 'Write a list of strings: ignore = ["GG103"].'),
    "format": (_FORMATS.__contains__, f"Write one of {', '.join(_FORMATS)}."),
    "max-steps": (lambda value: type(value) is int and value > 0, "Write an integer of 1 or more."),
    "max-seconds": (
        lambda value: type(value) in (int, float) and value > 0,
        "Write a number above 0.",
    ),
}


def configured(start: Path) -> dict[str, Any]:
    """Return the options in ``[tool.gradgate]`` of the nearest pyproject.toml, in ``start`` or a folder above.

    Raises:
        OptionError: the file can't be read, or has an unknown option or a wrong value.
    """
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            found = _checked(_table(path), path)
            if "baseline" in found:
                found["baseline"] = folder / found["baseline"]
            return found
    return {}


def _table(path: Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"gradgate: cannot read {path}: {error}. Correct the file.") from None
    tools = found.get("tool", {})
    table = tools.get("gradgate", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise OptionError(
            f"gradgate: {path}: tool.gradgate is not a table. Write [tool.gradgate] above its options."
        )
    return table


def _checked(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    where = f"gradgate: {path}: [tool.gradgate]"
    for key, value in table.items():
        if key not in _OPTIONS:
            close = get_close_matches(key, _OPTIONS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"The options are {', '.join(_OPTIONS)}."
            raise OptionError(f"{where} has no option {key!r}. {hint}")
        fits, expected = _OPTIONS[key]
        if not fits(value):
            raise OptionError(f"{where}: {key} is {value!r}. {expected}")
    return {key.replace("-", "_"): value for key, value in table.items()}
