"""Render a report's text and figures as one HTML file."""

from __future__ import annotations

import base64
import importlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gradgate.checker.reports._content import Content, SourceLine
from gradgate.checker.reports._words import short_path
from gradgate.checker.reports.page import _curves, _flows, _times
from gradgate.checker.reports.page._run_view import Figure, RunView
from gradgate.checker.rules import Rule, rules
from gradgate.events import Log

_FOLDER = Path(__file__).parent
# In the order of the page. The template holds the titles and captions.
_SECTIONS: Mapping[str, Callable[[RunView], list[Figure]]] = {
    "overview": _curves.draw,
    "flow": _flows.draw,
    "reach": _flows.draw_map,
    "window": _times.draw,
    "norms": _curves.draw_gradients,
    "ratios": _curves.draw_ratios,
}


def to_html(report: Content) -> str:
    """Return a report as an HTML page that needs no other file."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    log = max(report.logs, key=lambda log: (log.steps, log.backwards), default=None)
    sections = _sections(log) if log is not None and log.events else {}
    drawn = [figure for section in sections.values() if not isinstance(section, str) for figure in section]
    figures = [{part: figure[part] for part in ("data", "layout")} for figure in drawn]  # names are escaped
    verdict, severity = report.verdict()
    return environment.get_template("page.html").render(
        script=short_path(report.script) if report.script else "a loop",
        verdict=verdict,
        severity=severity,
        entries=report.entries(),
        facts=list(report.facts()),
        circumstances=_circumstances(log),
        sections=sections,
        figures_json=json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),  # safe in a script element
        usages=_flows.USAGES,
        highlighted=highlighted,
        rules=rules(),
        explained=_explained,
        css=(_FOLDER / "page.css").read_text("utf-8") + _token_styles(),
        js=(_FOLDER / "page.js").read_text("utf-8"),
        plotly=_packed_plotly() if figures else "",
    )


def _circumstances(log: Log | None) -> list[tuple[str, str]]:
    """Return labelled facts: how and where the script ran, and the version of gradgate."""
    found = dict(log.circumstances) if log is not None else {}
    ours = f"gradgate {importlib.import_module('gradgate').__version__}"
    return [*(found | {"versions": ", ".join(filter(None, [ours, found.get("versions")]))}).items()]


def _packed_plotly() -> str:
    """Return plotly.js compressed and encoded, for the page to unpack."""
    import plotly.offline  # type: ignore[import-untyped]

    return base64.b64encode(zlib.compress(plotly.offline.get_plotlyjs().encode(), 9)).decode("ascii")


def _sections(log: Log) -> dict[str, list[Figure] | str]:
    """Return the sections by name: figures, or why they could not be drawn."""
    view = RunView(log)
    found: dict[str, list[Figure] | str] = {}
    for name, draw in _SECTIONS.items():
        try:
            section: list[Figure] | str = draw(view)
        except Exception as error:  # noqa: BLE001  (a bug in a figure must not cost the findings)
            why = f"{type(error).__name__}: {error}"
            section = f"This figure could not be drawn because of a bug in gradgate: {why}"
        if section:
            found[name] = section
    return found


def highlighted(lines: Sequence[SourceLine]) -> list[tuple[SourceLine, str]]:
    """Return each line with its highlighted code as escaped HTML."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lexer, formatter = PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
    # Highlight each line separately, because an excerpt may begin inside a string.
    return [(line, str(highlight(line.text, lexer, formatter)).rstrip("\n")) for line in lines]


def _explained(rule: Rule) -> list[tuple[str, list[str]]]:
    """Return the sections of a rule's docstring: a heading, and paragraphs.

    The example is left out. It shows one of several mistakes that a rule finds, and rarely the one of the finding.
    """
    parts = [part.partition("\n") for part in f"\n{rule.doc.strip()}".split("\n## ")]
    return [
        (heading, re.split(r"\n\n|\n(?=- )", text.replace("``", "").strip()))
        for heading, _, text in parts
        if heading not in ("Example", "Use instead")
    ]


def _token_styles() -> str:
    """Return the CSS of the tokens for light and dark backgrounds."""
    from pygments.formatters import HtmlFormatter

    def style(name: str, within: str) -> Iterator[str]:
        for line in HtmlFormatter(style=name).get_style_defs(within).splitlines():
            # The lexer may take the rest of a string for an error, so errors get no style.
            if line.startswith(within + " .") and " .err " not in line:
                yield line

    return "\n".join([*style("friendly", ".code"), *style("github-dark", ":root[data-theme=dark] .code")])
