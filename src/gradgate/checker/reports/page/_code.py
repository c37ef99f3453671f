"""Source code as HTML, in colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradgate.checker.reports._lines import SourceLine
from gradgate.checker.rules import rules


def highlighted(lines: Sequence[SourceLine]) -> list[tuple[SourceLine, str]]:
    """Return lines, each with its Python as escaped HTML that has a class on each token."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer, formatter = PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
    # Each line by itself, because an excerpt may begin within a string.
    return [(line, str(highlight(line.text, lexer, formatter)).rstrip("\n")) for line in lines]


def example(code: str, heading: str) -> list[SourceLine]:
    """Return the code below a heading of a rule's docstring."""
    doc = next((rule.doc for rule in rules() if rule.code == code), "")
    part = doc.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [SourceLine(0, "", line[4:]) for line in part.splitlines() if line.startswith("    ")]


def token_styles() -> str:
    """Return the CSS of the tokens, for a light and for a dark background."""
    from pygments.formatters import HtmlFormatter

    def style(name: str, within: str) -> Iterator[str]:
        for line in HtmlFormatter(style=name).get_style_defs(within).splitlines():
            # The lexer may mark the rest of a string as an error, so errors have no style.
            if line.startswith(within + " .") and " .err " not in line:
                yield line

    return "\n".join([*style("friendly", ".code"), *style("github-dark", ":root[data-theme=dark] .code")])
