"""The page: the words and figures of a report in one file of HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradgate.checker.reports._content import Content, SourceLine
from gradgate.checker.reports._words import short_path
from gradgate.checker.reports.page import _curves, _flows, _memory, _timeline
from gradgate.checker.reports.page._run_view import Figure, RunView
from gradgate.checker.rules import rules
from gradgate.events import Log

_FOLDER = Path(__file__).parent
# The order of the page. Titles and captions are in the template.
_SECTIONS: Mapping[str, Callable[[RunView], Figure | str | None]] = {
    "flow": _flows.draw,
    "reach": _flows.draw_map,
    "window": _timeline.draw,
    "norms": _curves.draw_gradients,
    "ratios": _curves.draw_ratios,
    "memory": _memory.draw,
}


def to_html(report: Content) -> str:
    """Return a report as one page of HTML that needs no other file."""
    import jinja2
    import plotly.offline  # type: ignore[import-untyped]

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = _sections(report.logs)
    figures = {name: section for name, section in sections.items() if isinstance(section, dict)}
    verdict, severity = report.verdict()
    return environment.get_template("page.html").render(
        script=short_path(report.script) if report.script else "a loop",
        verdict=verdict,
        severity=severity,
        entries=report.entries(),
        facts=list(report.facts()),
        sections=sections,
        figures=figures,
        figures_json=_for_script(figures),
        usages=_flows.USAGES,
        highlighted=highlighted,
        example=_example,
        css=(_FOLDER / "page.css").read_text("utf-8") + _token_styles(),
        js=(_FOLDER / "page.js").read_text("utf-8"),
        plotly=plotly.offline.get_plotlyjs() if figures else "",
    )


def _sections(logs: tuple[Log, ...]) -> dict[str, Figure | str]:
    """Return by name what there is to draw: plotly figures, and HTML."""
    trained = [log for log in logs if log.events]
    if not trained:
        return {}
    view = RunView(max(trained, key=lambda log: (log.steps, log.backwards)))
    drawn = {name: _drawn(draw, view) for name, draw in _SECTIONS.items()}
    return {name: section for name, section in drawn.items() if section is not None}


def _drawn(draw: Callable[[RunView], Figure | str | None], view: RunView) -> Figure | str | None:
    try:
        return draw(view)
    except Exception as error:  # noqa: BLE001  (a bug in a figure must not cost the findings)
        why = html.escape(f"{type(error).__name__}: {error}")
        return f"<p>This figure could not be drawn because of a bug in gradgate: {why}</p>"


def _for_script(value: Any) -> str:
    """Return a value as JSON within a script element: nothing in it can end that element or begin a comment."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def highlighted(lines: Sequence[SourceLine]) -> list[tuple[SourceLine, str]]:
    """Return lines, each with its Python as escaped HTML that has a class on each token."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer, formatter = PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
    # Each line by itself, because an excerpt may begin within a string.
    return [(line, str(highlight(line.text, lexer, formatter)).rstrip("\n")) for line in lines]


def _example(code: str, heading: str) -> list[SourceLine]:
    """Return the code below a heading of a rule's docstring."""
    doc = next((rule.doc for rule in rules() if rule.code == code), "")
    part = doc.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [SourceLine(0, "", line[4:]) for line in part.splitlines() if line.startswith("    ")]


def _token_styles() -> str:
    """Return the CSS of the tokens, for a light and for a dark background."""
    from pygments.formatters import HtmlFormatter

    def style(name: str, within: str) -> Iterator[str]:
        for line in HtmlFormatter(style=name).get_style_defs(within).splitlines():
            # The lexer may mark the rest of a string as an error, so errors have no style.
            if line.startswith(within + " .") and " .err " not in line:
                yield line

    return "\n".join([*style("friendly", ".code"), *style("github-dark", ":root[data-theme=dark] .code")])
