"""The declarations of events are where everything else comes from: the page about them, and how they are saved."""

import dataclasses
import pickle
import re
import typing
from typing import Any, Literal

import pytest

from gradgate.events import (
    Event,
    Frame,
    Group,
    Log,
    Parameter,
    Span,
    Term,
)
from tools.events_table import EVENTS, PAGE, describe, fields_of, renewed

DECLARED = [Log, Parameter, Group, Term, Frame, Span, *EVENTS.values()]


def test_the_page_shows_the_present_declarations() -> None:
    page = PAGE.read_text("utf-8")
    assert renewed(page) == page, "run `python tools/events_table.py`"
    assert renewed(page.replace("| `reached` |", "| `found` |")) == page


def test_every_declaration_has_its_chapter() -> None:
    assert re.findall(r"^#+ `?(\w+)", describe(), re.MULTILINE) == [record.__name__ for record in DECLARED]


@pytest.mark.parametrize("record", DECLARED, ids=lambda record: record.__name__)
def test_every_field_says_what_it_means(record: type[Any]) -> None:
    names = getattr(record, "_fields", None) or [each.name for each in dataclasses.fields(record)]
    described = {name: meaning for name, _, meaning in fields_of(record)}
    assert list(described) == [name for name in names if name != "site" or not issubclass(record, Event)]
    assert all(described.values())
    assert (record.__doc__ or "").partition("\n")[0].endswith(".")


SITE = (Frame("/train.py", 3, "main"), Frame("/train.py", 9, "<module>"))


def example(kind: Any) -> Any:
    """Return a value of a declared type that is not its default."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated or type(None) in inner:
        return example(inner[0])
    if origin is Literal:
        return inner[-1]
    if origin is frozenset:
        return frozenset({2, 5})
    if kind == tuple[Frame, ...]:
        return SITE
    if origin is tuple:
        return (example(inner[0]),) * 2 if ... in inner else tuple(map(example, inner))
    if kind in (Group, Term):
        return made(kind)
    return {int: 7, float: 0.5, str: "text", bool: False}[kind]


def made(kind: type[Any]) -> Any:
    """Return a record all of whose fields are set."""
    hints = typing.get_type_hints(kind)
    return kind(**{each.name: example(hints[each.name]) for each in dataclasses.fields(kind)})


def test_every_event_survives_being_saved_with_all_of_its_fields() -> None:
    events = tuple(made(kind) for kind in EVENTS.values())
    parameter = made(Parameter)
    log = Log(
        "train.py",
        {7: parameter},
        {0: "optimizer"},
        events,
        spans=(Span("step", 0.5, 1.5, 3),),
        failures=("no",),
    )
    assert pickle.loads(pickle.dumps(log)) == log
