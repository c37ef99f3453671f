"""A finding as the page shows it: the user's lines, the words, and the mending as a diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradgate.checker.reports._diff import DiffLine, diff
from gradgate.checker.reports._source import excerpt
from gradgate.checker.reports._words import counted, near
from gradgate.checker.rules import Finding, rules

_AROUND = 3


@dataclass(frozen=True)
class Row:
    """A line of source: its number, "" where it is new; its mark ("", "here", "-", "+"); its text, as HTML."""

    number: str
    mark: str
    code: str


@dataclass(frozen=True)
class Shown:
    """What the template needs of a finding."""

    finding: Finding
    anchor: str
    place: str
    severity: str
    often: str
    source: Sequence[Row]
    diff: Sequence[Row]
    wrong: Sequence[Row]  # where there is no diff: the rule's own example, and what to use instead
    right: Sequence[Row]


def shown(findings: Sequence[Finding]) -> list[Shown]:
    """Return findings for the template, in their order."""
    return [_shown(number, finding) for number, finding in enumerate(findings, start=1)]


def _shown(number: int, finding: Finding) -> Shown:
    mended = diff(finding, around=1, whole=2 * _AROUND)
    return Shown(
        finding,
        anchor=f"finding-{number}",
        place=f"{near(finding.file)}:{finding.line}",
        severity="note" if finding.severity == "info" else finding.severity,
        often=counted(finding.count, "time") if finding.count > 1 else "",
        source=_source(finding),
        diff=_rows(mended),
        wrong=() if mended else _example(finding.code, "## Example"),
        right=() if mended else _example(finding.code, "## Use instead"),
    )


def _source(finding: Finding) -> list[Row]:
    lines = excerpt(finding.file, finding.line, _AROUND)
    coded = highlighted([text for _, text in lines])
    return [
        Row(str(number), "here" if number == finding.line else "", code)
        for (number, _), code in zip(lines, coded, strict=True)
    ]


def _example(code: str, heading: str) -> list[Row]:
    """Return the code below a heading of a rule's docstring."""
    doc = next((rule.doc for rule in rules() if rule.code == code), "")
    part = doc.partition(f"{heading}\n")[2].partition("\n## ")[0]
    return _rows([DiffLine("", "", line[4:]) for line in part.splitlines() if line.startswith("    ")])


def _rows(lines: Sequence[DiffLine]) -> list[Row]:
    coded = highlighted([line.text for line in lines])
    return [Row(line.number, line.mark, code) for line, code in zip(lines, coded, strict=True)]


def highlighted(lines: Sequence[str]) -> list[str]:
    """Return lines of Python as HTML with a class on each token; what it takes for markup is escaped."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer, formatter = PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
    # Each by itself: an excerpt may begin within a string.
    return [str(highlight(line, lexer, formatter)).rstrip("\n") for line in lines]


def colours() -> str:
    """Return the style of the tokens, for light ground and for dark."""
    from pygments.formatters import HtmlFormatter

    def style(name: str, within: str) -> Iterator[str]:
        for line in HtmlFormatter(style=name).get_style_defs(within).splitlines():
            # An excerpt may begin within a string: what the lexer takes for an error is none of the user's.
            if line.startswith(within + " .") and " .err " not in line:
                yield line

    dark = "\n".join(style("github-dark", ":root[data-theme=dark] .code"))
    return "\n".join([*style("friendly", ".code"), dark])
