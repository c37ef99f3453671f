"""A report as JSON, for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from gradgate.checker.reports._content import Content, Entry
from gradgate.checker.reports._lines import edits_of


def to_json(report: Content) -> str:
    """Return a report as JSON of version 2; a later one of that version may add keys, and takes none away."""
    content = {
        "version": 2,
        "script": report.script,
        "findings": [_record(entry) for entry in report.entries()],
        "summary": dataclasses.asdict(report.summary) | {"began": report.summary.began},
    }
    return json.dumps(plain(content), indent=2, allow_nan=False)


def _record(entry: Entry) -> dict[str, Any]:
    fields = ("code", "category", "severity", "file", "line", "message", "why", "count", "evidence")
    record = {name: getattr(entry.finding, name) for name in fields}
    return record | {
        "advice": entry.advice,
        "edits": [dataclasses.asdict(edit) for edit in edits_of(entry.finding)],
    }


def plain(value: Any) -> Any:
    """Return a value in the types of JSON. Infinities, nan and unknown objects become text, sets become lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)
