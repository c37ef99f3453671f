"""A report as SARIF 2.1.0, which code hosts show beside the lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradgate.checker.fixes import Edit, edits_for
from gradgate.checker.reports._json import plain
from gradgate.checker.reports._report import Report
from gradgate.checker.reports._rules import rule_page
from gradgate.checker.reports._source import source_line
from gradgate.checker.rules import Finding, Rule, rules

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def to_sarif(report: Report, *, version: str = "") -> str:
    """Return a report as SARIF. Paths are relative to the working directory where they lie below it."""
    numbers = {rule.code: number for number, rule in enumerate(rules())}
    run = {
        "tool": {
            "driver": {
                "name": "gradgate",
                **({"version": version} if version else {}),
                "rules": [_rule(rule) for rule in rules()],
            }
        },
        "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": report.summary.outcome in ("finished", "stopped")}],
        "results": [_result(finding, numbers) for finding in report.findings],
        "properties": {"script": report.script},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.doc.strip(), "markdown": rule_page(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    line = source_line(finding.file, finding.line)
    region: dict[str, Any] = {"startLine": max(1, finding.line)}
    if line.strip():
        region["snippet"] = {"text": line}
    text = f"{finding.message}\n{finding.why}\n{finding.advice}"
    edits = edits_for(finding)
    return {
        "ruleId": finding.code,
        **({"ruleIndex": numbers[finding.code]} if finding.code in numbers else {}),
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(finding.file), "region": region}}],
        **({"fixes": [_fix(finding, edits)]} if edits else {}),
        "occurrenceCount": max(1, finding.count),
        # A host recognises a finding again by this where lines above it came or went.
        "partialFingerprints": {"lineAndRule/v1": _fingerprint(finding, line)},
        "properties": {"category": finding.category, "evidence": plain(dict(finding.evidence))},
    }


def _fix(finding: Finding, edits: Sequence[Edit]) -> dict[str, Any]:
    """Return edits as what an editor can make at a click."""
    changed = []
    for edit in edits:
        end = len(source_line(finding.file, edit.line)) + 1
        first = 1 if edit.instead else end
        region = {"startLine": edit.line, "startColumn": first, "endLine": edit.line, "endColumn": end}
        if not edit.lines:  # the line goes with its end
            region |= {"endLine": edit.line + 1, "endColumn": 1}
        text = "\n".join(edit.lines if edit.instead else ("", *edit.lines))
        changed.append({"deletedRegion": region, **({"insertedContent": {"text": text}} if text else {})})
    return {
        "description": {"text": finding.advice},
        "artifactChanges": [{"artifactLocation": _artifact(finding.file), "replacements": changed}],
    }


def _artifact(file: str) -> dict[str, str]:
    path = Path(file)
    if not path.is_absolute():
        return {"uri": quote(path.as_posix(), safe="/"), "uriBaseId": _ROOT}
    try:
        return {"uri": quote(path.relative_to(Path.cwd()).as_posix(), safe="/"), "uriBaseId": _ROOT}
    except ValueError:
        return {"uri": path.as_uri()}


def _fingerprint(finding: Finding, line: str) -> str:
    named = f"{finding.code}\0{_artifact(finding.file)['uri']}\0{line.strip() or finding.line}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]
