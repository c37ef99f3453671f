"""Write the table of all events, made from their declarations, into the page that shows it.

Run ``python tools/events_table.py`` after changing an event.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradgate.events import Event, Frame, Group, Log, Parameter, Span, Term, _forward, _gradients, _loop
from gradgate.events._records import Doing, Ids, Site

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "rules_and_events.md"
EVENTS: dict[str, type[Event]] = {
    name: kind
    for module in (_gradients, _forward, _loop)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
RECORDS: tuple[type[Any], ...] = (Log, Parameter, Group, Term, Frame, Span)

_START = "<!-- events: made by tools/events_table.py -->\n"
_END = "<!-- end of events -->"


def describe() -> str:
    """Return a Markdown chapter for each record and event: its fields, their types and what they mean."""
    return "\n".join(_chapter(record) for record in (*RECORDS, *EVENTS.values()))


def renewed(page: str) -> str:
    """Return a page of the documentation with the current table between its two markers."""
    before, start, rest = page.partition(_START)
    _, end, after = rest.partition(_END)
    return f"{before}{start}\n{describe()}\n{end}{after}"


def fields_of(record: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of each field. The ``site`` that every event has is left out."""
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        if typing.get_origin(hint) is typing.Annotated and not (name == "site" and issubclass(record, Event)):
            yield name, _name_of(typing.get_args(hint)[0]), hint.__metadata__[0]


def _chapter(record: type[Any]) -> str:
    rows = [
        f"| `{name}` | `{kind}` | {meaning} |".replace(" | None`", "`, or `None`")
        for name, kind, meaning in fields_of(record)
    ]
    table = ["| field | type | meaning |", "|---|---|---|", *rows, ""] if rows else []
    says = (record.__doc__ or "").replace("``", "`")
    return "\n".join([f"### {record.__name__}", "", says, "", *table])


def _name_of(kind: Any) -> str:
    """Return a type as the source spells it."""
    for known, name in ((Ids, "Ids"), (Site, "Site"), (Doing, "Doing")):
        if kind == known:
            return name
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return " or ".join(repr(each) for each in typing.get_args(kind))
    inner = [_name_of(each) for each in typing.get_args(kind)]
    if origin in (types.UnionType, typing.Union):
        return " | ".join(inner)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(inner)}]"
    return {type(None): "None", ...: "..."}.get(kind) or str(kind.__name__)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), encoding="utf-8")
