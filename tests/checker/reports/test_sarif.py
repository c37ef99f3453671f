"""What code hosts read. The shapes below are those parts of the official schema that gradgate writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradgate.checker.fixes import apply, edits_for
from gradgate.checker.reports import Report, to_sarif
from gradgate.checker.rules import Finding, rules
from tests.checker.reports.made import SUMMARY, finding, report

# Of each object all that the SARIF 2.1.0 schema lets it hold, as far as gradgate uses it; what it requires has a
# star. The schema forbids every other property ("additionalProperties": false) but in a property bag.
SHAPES: dict[str, dict[str, Any]] = {
    "log": {"$schema": str, "version*": str, "runs*": ["run"]},
    "run": {
        "tool*": "tool",
        "invocations": ["invocation"],
        "results": ["result"],
        "originalUriBaseIds": {"": "artifactLocation"},
        "columnKind": str,
        "properties": dict,
    },
    "tool": {"driver*": "toolComponent"},
    "toolComponent": {"name*": str, "version": str, "rules": ["reportingDescriptor"]},
    "reportingDescriptor": {
        "id*": str,
        "name": str,
        "shortDescription": "multiformatMessageString",
        "help": "multiformatMessageString",
        "defaultConfiguration": "reportingConfiguration",
    },
    "multiformatMessageString": {"text*": str, "markdown": str},
    "reportingConfiguration": {"level": str},
    "invocation": {"executionSuccessful*": bool},
    "result": {
        "ruleId": str,
        "ruleIndex": int,
        "level": str,
        "message*": "message",
        "locations": ["location"],
        "fixes": ["fix"],
        "occurrenceCount": int,
        "partialFingerprints": {"": str},
        "properties": dict,
    },
    "message": {"text": str},
    "location": {"physicalLocation": "physicalLocation"},
    "physicalLocation": {"artifactLocation": "artifactLocation", "region": "region"},
    "artifactLocation": {"uri": str, "uriBaseId": str},
    "fix": {"description": "message", "artifactChanges*": ["artifactChange"]},
    "artifactChange": {"artifactLocation*": "artifactLocation", "replacements*": ["replacement"]},
    "replacement": {"deletedRegion*": "region", "insertedContent": "artifactContent"},
    "region": {
        "startLine": int,
        "startColumn": int,
        "endLine": int,
        "endColumn": int,
        "snippet": "artifactContent",
    },
    "artifactContent": {"text": str},
}


def mismatches(value: Any, shape: Any, where: str = "log") -> list[str]:
    """Return what in a value is not of a shape, one line for each."""
    if isinstance(shape, str):
        shape = SHAPES[shape]
        wanted = {name.rstrip("*"): inner for name, inner in shape.items()}
        if not isinstance(value, dict):
            return [f"{where} is no object"]
        found = [f"{where} lacks {name[:-1]}" for name in shape if name[-1] == "*" and name[:-1] not in value]
        found += [f"{where} may not have {name}" for name in value if name not in wanted]
        return found + [
            line
            for name in value.keys() & wanted.keys()
            for line in mismatches(value[name], wanted[name], f"{where}.{name}")
        ]
    if isinstance(shape, list):
        return [line for n, item in enumerate(value) for line in mismatches(item, shape[0], f"{where}[{n}]")]
    if isinstance(shape, dict):
        return [
            line for name, item in value.items() for line in mismatches(item, shape[""], f"{where}.{name}")
        ]
    return [] if type(value) is shape else [f"{where} is no {shape.__name__}"]


@pytest.fixture
def sarif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    read: dict[str, Any] = json.loads(to_sarif(report(tmp_path)))
    return read


def test_a_report_has_the_shape_of_sarif(sarif: dict[str, Any]) -> None:
    assert mismatches(sarif, "log") == []
    assert sarif["version"] == "2.1.0"


def test_another_shape_is_noticed(sarif: dict[str, Any]) -> None:
    del sarif["runs"][0]["results"][0]["message"]
    sarif["runs"][0]["results"][0]["line"] = 3
    sarif["runs"][0]["results"][1]["level"] = 3
    assert mismatches(sarif, "log") == [
        "log.runs[0].results[0] lacks message",
        "log.runs[0].results[0] may not have line",
        "log.runs[0].results[1].level is no str",
    ]


def test_levels_and_kinds_are_those_that_sarif_knows(sarif: dict[str, Any]) -> None:
    run = sarif["runs"][0]
    levels = {result["level"] for result in run["results"]}
    levels |= {rule["defaultConfiguration"]["level"] for rule in run["tool"]["driver"]["rules"]}
    assert levels <= {"none", "note", "warning", "error"}
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")


def test_a_result_names_its_rule_and_place(sarif: dict[str, Any], tmp_path: Path) -> None:
    run = sarif["runs"][0]
    result = run["results"][0]
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": tmp_path.as_uri() + "/"}}
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 6, "snippet": {"text": "    if i % 4 == 0:"}},
            }
        }
    ]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "GG101"
    assert [each["level"] for each in run["results"]] == ["error", "note"]


def test_every_rule_brings_its_help(sarif: dict[str, Any]) -> None:
    described = sarif["runs"][0]["tool"]["driver"]["rules"]
    assert [each["id"] for each in described] == [rule.code for rule in rules()]
    assert all("Why is this bad?" in each["help"]["markdown"] for each in described)


def result(found: Finding) -> dict[str, Any]:
    """Return what is written for a finding."""
    written = json.loads(to_sarif(Report("", (found,), SUMMARY)))
    return written["runs"][0]["results"][0]  # type: ignore[no-any-return]


def test_a_file_elsewhere_keeps_its_whole_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def address(path: Path) -> dict[str, str]:
        location = result(finding(path))["locations"][0]["physicalLocation"]
        return location["artifactLocation"]  # type: ignore[no-any-return]

    assert address(tmp_path / "my file.py") == {"uri": (tmp_path / "my file.py").as_uri()}
    assert address(tmp_path / "here" / "my file.py")["uri"] == "my%20file.py"


@pytest.mark.parametrize(
    ("code", "line", "lines"),
    [
        ("GG101", 2, ["for i, x in enumerate(data):", "    if i % 4 == 0:  # é", "        o.step()"]),
        ("GG202", 3, ["for x in data:", "    f(x).backward()", "    o.zero_grad()", "    o.step()"]),
        ("GG402", 3, ["if x:", "    h = g(x)", "    h = f(h,", "          x)", "print(h)"]),
    ],
)
def test_an_editor_that_makes_the_fix_gets_the_mended_file(
    code: str, line: int, lines: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines) + "\n", "utf-8")
    one = finding(script, line, code=code, message="Running without gradients cuts", advice="Mend it.")
    result = json.loads(to_sarif(Report("", (one,), SUMMARY)))["runs"][0]["results"][0]
    (change,) = result["fixes"][0]["artifactChanges"]
    text = script.read_text("utf-8")
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")]
    for one_change in reversed(change["replacements"]):  # from the end: places further up stay
        region = one_change["deletedRegion"]
        first = starts[region["startLine"] - 1] + region["startColumn"] - 1
        last = starts[region["endLine"] - 1] + region["endColumn"] - 1
        text = text[:first] + one_change.get("insertedContent", {"text": ""})["text"] + text[last:]
    assert text.splitlines() == apply(lines, edits_for(one)) != lines
