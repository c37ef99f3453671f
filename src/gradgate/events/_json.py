"""Logs as JSON, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from gradgate.events import _around, _forward, _gradients
from gradgate.events._log import Log
from gradgate.events._places import Event, Frame, Ids, Parameter, Site
from gradgate.events._spans import Span

EVENTS: Mapping[str, type[Event]] = {
    name: kind
    for room in (_around, _forward, _gradients)
    for name, kind in vars(room).items()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


def to_json(log: Log) -> dict[str, Any]:
    """Turn a log into what :mod:`json` can write; sites and sets that repeat stand once, in tables."""
    sites: dict[Site, int] = {}
    sets: dict[Ids, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, frozenset):
            return sets.setdefault(value, len(sets))
        if isinstance(value, tuple):
            if not value or isinstance(value[0], Frame):
                return {"site": sites.setdefault(value, len(sites))} if value else []
            return [plain(item) for item in value]
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return value

    events = [{"event": type(event).__name__, **plain(event)} for event in log.events]
    parameters = [plain(parameter) for parameter in log.parameters.values()]
    rest = {
        f.name: getattr(log, f.name)
        for f in dataclasses.fields(log)
        if f.name not in ("events", "parameters", "optimizers")
    }
    return {
        "version": Log.VERSION,
        **rest,
        "optimizers": {str(number): name for number, name in log.optimizers.items()},
        "parameters": parameters,
        "events": events,
        "sites": [[list(frame) for frame in site] for site in sites],
        "sets": [sorted(ids) for ids in sets],
    }


def from_json(saved: Mapping[str, Any]) -> Log:
    """Read a log that :func:`to_json` made.

    Raises:
        ValueError: it was made by a version that writes another form.
    """
    if saved.get("version") != Log.VERSION:
        raise ValueError(
            f"from_json: this log has version {saved.get('version')!r}, version {Log.VERSION} is read here. "
            "Make it again with this version of gradgate."
        )
    sites = [tuple(Frame(*frame) for frame in site) for site in saved["sites"]]
    sets = [frozenset(ids) for ids in saved["sets"]]

    def read(value: Any, kind: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"site"}:
            return sites[value["site"]]
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is frozenset:
            return sets[value]
        if origin is tuple and value is not None:
            inner = arguments if len(arguments) == len(value) and ... not in arguments else None
            return tuple(
                read(item, inner[number] if inner else arguments[0]) for number, item in enumerate(value)
            )
        if origin in (types.UnionType, typing.Union) and value is not None:
            return read(value, next(option for option in arguments if option is not type(None)))
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            return record(typing.cast("type[Any]", kind), value)
        return value

    def record(kind: type[Any], value: Mapping[str, Any]) -> Any:
        hints = _hints(kind)
        return kind(**{name: read(item, hints[name]) for name, item in value.items() if name != "event"})

    parameters = [record(Parameter, item) for item in saved["parameters"]]
    rest: dict[str, Any] = {
        f.name: tuple(saved[f.name]) if isinstance(saved[f.name], list) else saved[f.name]
        for f in dataclasses.fields(Log)
        if f.name not in ("events", "parameters", "optimizers", "spans")
    }
    return Log(
        **rest,
        optimizers={int(number): name for number, name in saved["optimizers"].items()},
        parameters={parameter.id: parameter for parameter in parameters},
        spans=tuple(Span(*one) for one in saved.get("spans", ())),
        events=tuple(record(EVENTS[item["event"]], item) for item in saved["events"]),
    )


_known_hints: dict[type, dict[str, Any]] = {}


def _hints(kind: type) -> dict[str, Any]:
    if kind not in _known_hints:
        _known_hints[kind] = typing.get_type_hints(kind)
    return _known_hints[kind]
