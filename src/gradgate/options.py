"""Checks options that have a few possible values, and arguments that must be functions."""

from __future__ import annotations

from collections.abc import Sequence

from gradgate.errors import OptionError


def check_choice(where: str, option: str, value: object, choices: Sequence[object], *others: str) -> None:
    """Raise OptionError unless ``value`` is a choice. ``others`` describes values that the caller checks itself."""
    if value not in choices:
        *first, last = *map(repr, choices), *others
        raise OptionError(f"{where}: {option} is {value!r}; it must be {', '.join(first)} or {last}.")


def check_function(where: str, option: str, value: object, call: str) -> None:
    """Raise OptionError unless ``value`` can be called. ``call`` shows the order of the arguments."""
    if not callable(value):
        raise OptionError(
            f"{where}: {option} is a {type(value).__name__}, which cannot be called. Pass a function: {call}."
        )
