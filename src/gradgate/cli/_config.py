"""``[tool.gradgate]`` in the nearest pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gradgate.errors import OptionError

_KEYS = ("select", "ignore", "format", "max-steps")
_FORMATS = ("text", "json", "sarif", "html")


def configured(start: Path) -> dict[str, Any]:
    """Return what the nearest pyproject.toml, from a folder upwards, says in ``[tool.gradgate]``.

    Raises:
        OptionError: it cannot be read, or says something that is no option.
    """
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _checked(_table(path), path)
    return {}


def _table(path: Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"gradgate: {path} cannot be read: {error}. Mend it, or check elsewhere.") from None
    tools = found.get("tool", {})
    table = tools.get("gradgate", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise OptionError(
            f"gradgate: {path}: tool.gradgate is not a table. Write [tool.gradgate], with options below it."
        )
    return table


def _checked(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    where = f"gradgate: {path}: [tool.gradgate]"
    for key, value in table.items():
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"It knows {', '.join(_KEYS)}."
            raise OptionError(f"{where} has no option {key!r}. {hint}")
        if not _fits(key, value):
            raise OptionError(f"{where}: {key} is {value!r}. {_wanted(key)}")
    return {key.replace("-", "_"): value for key, value in table.items()}


def _fits(key: str, value: Any) -> bool:
    if key == "format":
        return value in _FORMATS
    if key == "max-steps":
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _wanted(key: str) -> str:
    return {
        "format": f"Write one of {', '.join(_FORMATS)}.",
        "max-steps": "Write a whole number of 1 or more.",
    }.get(key, f'Write a list of texts: {key} = ["GG103"].')
