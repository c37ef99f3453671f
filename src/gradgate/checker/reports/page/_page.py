"""The page: words and figures of a report, put into one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradgate.checker.reports._layout import summary_rows, verdict
from gradgate.checker.reports._words import near
from gradgate.checker.reports.page import _curves, _flows, _memory, _reach, _timeline
from gradgate.checker.reports.page._findings import colours, shown
from gradgate.checker.reports.page._seen import Seen
from gradgate.events import Log
from gradgate.notebook_tables import LATE, NOTHING, USED, WASTED

if TYPE_CHECKING:
    from gradgate.checker.reports._report import Report

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A figure and what it says. ``wide``: it needs so many pixels and is scrolled where there are less."""

    anchor: str
    title: str
    says: str
    figure: str = ""
    wide: int = 0
    key: tuple[tuple[str, str], ...] = ()


_USE = ((USED, "used by a step"), (WASTED, "used by none"), (LATE, "used by the step of a later loss"))

_SECTIONS: tuple[tuple[str, str, str, Callable[[Seen], Any], int, tuple[tuple[str, str], ...]], ...] = (
    (
        "flow",
        "Where gradient flows",
        "From each line that goes back, through modules, to the optimizer that uses what arrives. Widths grow with "
        "the square root of how many numbers a module holds, and with the share of the line's calls.",
        _flows.draw,
        680,
        (*_USE, (NOTHING, "no gradient came")),
    ),
    (
        "reach",
        "Who reaches whom, step by step",
        "For each line that goes back: the modules that it gives gradient to, over the steps of the run.",
        _reach.draw,
        0,
        _USE,
    ),
    (
        "window",
        "A window, as it went",
        "The window of median length, on a clock that stands still while the watcher works. Below a micro-batch: "
        "what its loss counts in the update.",
        _timeline.draw,
        0,
        (),
    ),
    (
        "norms",
        "Gradient norms",
        "By module, as each step was given them: after clipping, before the optimizer's own scaling.",
        _curves.draw_gradients,
        0,
        (),
    ),
    (
        "ratios",
        "How far a step moves",
        "The norm of each module's change, divided by the norm of its weights. Around 1e-3 (dotted) is common; far "
        "below, little is learnt; far above, training shakes.",
        _curves.draw_ratios,
        0,
        (),
    ),
    (
        "memory",
        "The plan's memory",
        "What each micro-batch of the last plan is foreseen to take, beside the whole batch at once.",
        _memory.draw,
        0,
        (),
    ),
)


def to_html(report: Report) -> str:
    """Return a report as one page of HTML that loads nothing from anywhere."""
    import jinja2
    import plotly.offline  # type: ignore[import-untyped]

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = _sections(report.logs)
    words, severity = verdict(report)
    return environment.get_template("page.html").render(
        report=report,
        script=near(report.script) if report.script else "a loop",
        verdict=words,
        severity="note" if severity == "info" else severity,
        findings=shown(report.findings),
        rows=list(summary_rows(report.summary)),
        sections=sections,
        figures=_for_script(
            ",".join(f'"{section.anchor}":{section.figure}' for section in sections if section.figure)
        ),
        css=(_HERE / "page.css").read_text("utf-8") + colours(),
        js=(_HERE / "page.js").read_text("utf-8"),
        plotly=plotly.offline.get_plotlyjs() if sections else "",
    )


def _sections(logs: tuple[Log, ...]) -> list[Section]:
    trained = [log for log in logs if log.events]
    if not trained:
        return []
    seen = Seen(max(trained, key=lambda log: (log.steps, log.backwards)))
    found = []
    for anchor, title, says, draw, wide, key in _SECTIONS:
        try:
            figure = draw(seen)
        except Exception as error:  # noqa: BLE001  (a fault of ours, which must not cost the findings)
            says = f"This figure could not be drawn, a fault of gradgate: {type(error).__name__}: {error}"
            found.append(Section(anchor, title, says))
            continue
        if figure is not None:
            found.append(Section(anchor, title, says, figure.to_json(), wide, key))
    return found


def _for_script(pairs: str) -> str:
    """Return JSON that may stand within a script: nothing in it ends that, or begins a comment."""
    text = f"{{{pairs}}}"
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
