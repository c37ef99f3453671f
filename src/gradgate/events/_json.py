"""Converts logs to JSON and back. Both directions follow the declared types of the records' fields."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from gradgate.events import _forward, _gradients, _loop
from gradgate.events._records import Event, Frame, Ids, Log, Site

EVENTS: Mapping[str, type[Event]] = {
    name: kind
    for module in (_gradients, _forward, _loop)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


def to_json(log: Log) -> dict[str, Any]:
    """Convert a log to containers for :mod:`json`. Sites and sets of parameters are stored once, in tables."""
    sites: dict[Site, int] = {}
    sets: dict[Ids, int] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, frozenset):
            return sets.setdefault(value, len(sets))
        if isinstance(value, Mapping):
            return {str(key): encode(item) for key, item in value.items()}
        if isinstance(value, tuple):
            if value and isinstance(value[0], Frame):
                return {"site": sites.setdefault(value, len(sites))}
            return [encode(item) for item in value]
        if dataclasses.is_dataclass(value):
            fields = {each.name: encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
            return {"event": type(value).__name__, **fields} if isinstance(value, Event) else fields
        return value

    encoded = encode(log)
    tables = {
        "sites": [[list(frame) for frame in site] for site in sites],
        "sets": [sorted(ids) for ids in sets],
    }
    return {"version": Log.VERSION, **encoded, **tables}


def from_json(saved: Mapping[str, Any]) -> Log:
    """Read a log that :func:`to_json` made.

    Raises:
        ValueError: another version of gradgate wrote the log, in another format.
    """
    if saved.get("version") != Log.VERSION:
        raise ValueError(
            f"from_json: this log has version {saved.get('version')!r}, but this gradgate reads version "
            f"{Log.VERSION}. Record the run again with this version of gradgate."
        )
    sites = [tuple(Frame(*frame) for frame in site) for site in saved["sites"]]
    sets = [frozenset(ids) for ids in saved["sets"]]

    def decode(value: Any, kind: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict) and value.keys() == {"site"}:
            return sites[value["site"]]
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is frozenset:
            return sets[value]
        if origin is Mapping:
            return {inner[0](key): decode(item, inner[1]) for key, item in value.items()}
        if origin is tuple:
            kinds = [inner[0]] * len(value) if ... in inner else inner
            return tuple(decode(item, each) for item, each in zip(value, kinds, strict=True))
        if origin in (types.UnionType, typing.Union):
            return decode(value, next(option for option in inner if option is not type(None)))
        if isinstance(value, list):
            return kind(*value)  # a named tuple
        if dataclasses.is_dataclass(kind):
            record: Any = EVENTS[value["event"]] if kind is Event else kind
            hints = _hints(record)
            return record(**{name: decode(value[name], hints[name]) for name in value if name in hints})
        return value

    return typing.cast("Log", decode(saved, Log))


_hints = functools.cache(typing.get_type_hints)
