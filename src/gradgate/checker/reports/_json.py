"""Reports for programs: JSON, and SARIF 2.1.0, which code hosts show next to the source lines."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradgate.checker.analysis._notebook_text import line_in_file
from gradgate.checker.reports._baseline import fingerprint
from gradgate.checker.reports._content import NOUNS, Content, Entry, rule_page, source_line
from gradgate.checker.rules import Rule, rules
from gradgate.events import cell_of

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"


def to_json(report: Content) -> str:
    """Return a report as JSON, version 2. Later releases may add keys to this version but remove none."""
    content = {
        "version": 2,
        "script": report.script,
        "findings": [_record(entry) for entry in report.entries()],
        "summary": dataclasses.asdict(report.summary) | {"began": report.summary.began},
    }
    return json.dumps(_plain(content), indent=2, allow_nan=False)


def _record(entry: Entry) -> dict[str, Any]:
    fields = ("code", "category", "severity", "file", "line", "message", "why", "count", "evidence")
    record = {name: getattr(entry.finding, name) for name in fields}
    if (cell := cell_of(entry.finding.file)) is not None:
        record |= {"file": cell.notebook, "cell": cell.number}
    return record | {
        "fingerprint": fingerprint(entry.finding),
        "advice": entry.finding.advice,
        "help": entry.help,
        "edits": [dataclasses.asdict(edit) for edit in entry.edits],
    }


def _plain(value: Any) -> Any:
    """Convert a value for JSON. Infinities, NaN and unknown objects become strings, sets become lists."""

    def plain(value: Any) -> Any:
        return sorted(value, key=str) if isinstance(value, (set, frozenset)) else str(value)

    text = json.dumps(value, default=plain)
    return json.loads(text, parse_constant=lambda constant: str(float(constant)))


def to_sarif(report: Content) -> str:
    """Return a report as SARIF. Paths below the working directory are relative to it."""
    code = {} if report.summary.exit_code is None else {"exitCode": report.summary.exit_code}
    version = import_module("gradgate").__version__
    driver = {"name": "gradgate", "version": version, "rules": [_rule(rule) for rule in rules()]}
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not report.summary.ending, **code}],
        "results": [_result(entry) for entry in report.entries()],
        "properties": {"script": report.script},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.doc.strip(), "markdown": rule_page(rule)},
        "defaultConfiguration": {"level": NOUNS[rule.severity]},
    }


def _result(entry: Entry) -> dict[str, Any]:
    finding = entry.finding
    numbers = {rule.code: number for number, rule in enumerate(rules())}
    where = f"{entry.place}: " if cell_of(finding.file) else ""
    return {
        "ruleId": finding.code,
        **({"ruleIndex": numbers[finding.code]} if finding.code in numbers else {}),
        "level": entry.severity,
        "message": {"text": f"{where}{finding.message}\n{finding.why}\n{finding.advice}"},
        "locations": [_location(entry)],
        **({"fixes": [_fix(entry)]} if entry.edits and not cell_of(finding.file) else {}),
        "occurrenceCount": max(1, finding.count),
        # With this, code hosts recognize a finding although other lines have changed.
        "partialFingerprints": {"gradgate/v2": fingerprint(finding)},
        "properties": {"category": finding.category, "evidence": _plain(dict(finding.evidence))},
    }


def _location(entry: Entry) -> dict[str, Any]:
    """Return a finding's location. For a notebook cell, this is a line of the notebook's file."""
    file, line = entry.finding.file, entry.finding.line
    text, cell = source_line(file, line), cell_of(file)
    number = max(1, line) if cell is None else line_in_file(cell, line)
    region: dict[str, Any] = {} if number is None else {"startLine": number}
    if region and text.strip():
        region["snippet"] = {"text": text}
    place = {"artifactLocation": _artifact(cell.notebook if cell else file)}
    place |= {"region": region} if region else {}
    if cell is None:
        return {"physicalLocation": place}
    logical = {"name": f"cell {cell.number}", "fullyQualifiedName": entry.place, "kind": "module"}
    return {"physicalLocation": place, "logicalLocations": [logical]}


def _fix(entry: Entry) -> dict[str, Any]:
    """Return a finding's edits as SARIF replacements, which editors can apply."""
    replacements = []
    for edit in entry.edits:
        end = len(source_line(entry.finding.file, edit.line)) + 1
        first = 1 if edit.instead else end
        region = {"startLine": edit.line, "startColumn": first, "endLine": edit.line, "endColumn": end}
        if not edit.lines:  # delete the line end too
            region |= {"endLine": edit.line + 1, "endColumn": 1}
        text = "\n".join(edit.lines if edit.instead else ("", *edit.lines))
        inserted = {"insertedContent": {"text": text}} if text else {}
        replacements.append({"deletedRegion": region, **inserted})
    change = {"artifactLocation": _artifact(entry.finding.file), "replacements": replacements}
    return {"description": {"text": entry.finding.advice}, "artifactChanges": [change]}


def _artifact(file: str) -> dict[str, str]:
    path = Path(file)
    if path.is_absolute() and not path.is_relative_to(Path.cwd()):
        return {"uri": path.as_uri()}
    path = path.relative_to(Path.cwd()) if path.is_absolute() else path
    return {"uri": quote(path.as_posix(), safe="/"), "uriBaseId": _ROOT}
