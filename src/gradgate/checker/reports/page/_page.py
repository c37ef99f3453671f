"""The page: the words and figures of a report in one file of HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradgate.checker.reports._content import Content
from gradgate.checker.reports._words import short_path
from gradgate.checker.reports.page import _curves, _flows, _memory, _reach, _timeline
from gradgate.checker.reports.page._code import example, highlighted, token_styles
from gradgate.checker.reports.page._plot import Figure
from gradgate.checker.reports.page._run_view import RunView
from gradgate.events import Log
from gradgate.notebook_tables import LATE, NOTHING, USED, WASTED

_FOLDER = Path(__file__).parent
# The order of the page. Titles and captions are in the template.
_FIGURES: Mapping[str, Callable[[RunView], Figure | None]] = {
    "flow": _flows.draw,
    "reach": _reach.draw,
    "window": _timeline.draw,
    "norms": _curves.draw_gradients,
    "ratios": _curves.draw_ratios,
    "memory": _memory.draw,
}
_COLORS = {"used": USED, "wasted": WASTED, "late": LATE, "none": NOTHING}


def to_html(report: Content) -> str:
    """Return a report as one page of HTML that needs no other file."""
    import jinja2
    import plotly.offline  # type: ignore[import-untyped]

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    figures, failures = _drawn(report.logs)
    verdict, severity = report.verdict()
    return environment.get_template("page.html").render(
        script=short_path(report.script) if report.script else "a loop",
        verdict=verdict,
        severity=severity,
        entries=report.entries(),
        facts=list(report.facts()),
        figures=figures,
        failures=failures,
        figures_json=_for_script(figures),
        colors=_COLORS,
        highlighted=highlighted,
        example=example,
        css=(_FOLDER / "page.css").read_text("utf-8") + token_styles(),
        js=(_FOLDER / "page.js").read_text("utf-8"),
        plotly=plotly.offline.get_plotlyjs() if figures else "",
    )


def _drawn(logs: tuple[Log, ...]) -> tuple[dict[str, Figure], dict[str, str]]:
    """Return the figures by name, and why others could not be drawn."""
    figures: dict[str, Figure] = {}
    failures: dict[str, str] = {}
    trained = [log for log in logs if log.events]
    if trained:
        view = RunView(max(trained, key=lambda log: (log.steps, log.backwards)))
        for name, draw in _FIGURES.items():
            try:
                figure = draw(view)
            except Exception as error:  # noqa: BLE001  (a bug in a figure must not cost the findings)
                failures[name] = f"{type(error).__name__}: {error}"
                continue
            if figure is not None:
                figures[name] = figure
    return figures, failures


def _for_script(value: Any) -> str:
    """Return a value as JSON within a script element: nothing in it can end that element or begin a comment."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
