"""A report as JSON, for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from gradgate.checker.fixes import edits_for
from gradgate.checker.reports._report import Report
from gradgate.checker.rules import Finding


def to_json(report: Report) -> str:
    """Return a report as JSON of version 1; a later version may add keys, and takes none away."""
    return json.dumps(
        {
            "version": 1,
            "script": report.script,
            "findings": [
                finding_record(finding)
                | {"mending": [dataclasses.asdict(edit) for edit in edits_for(finding)]}
                for finding in report.findings
            ],
            "summary": plain(dataclasses.asdict(report.summary) | {"began": report.summary.began}),
        },
        indent=2,
        allow_nan=False,
    )


def finding_record(finding: Finding) -> dict[str, Any]:
    """Return a finding's fields, in their order, as what JSON knows. Numbers of parameters say nothing outside."""
    names = [field.name for field in dataclasses.fields(finding) if field.name not in ("about", "fix")]
    record = {"fix" if name == "advice" else name: getattr(finding, name) for name in names}
    return {name: plain(value) for name, value in record.items()}


def plain(value: Any) -> Any:
    """Return a value in the types of JSON, which has no inf, no nan and no sets: they become text and lists."""
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
