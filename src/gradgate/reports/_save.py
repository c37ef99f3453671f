"""A report in a file, in the form that its ending names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gradgate.errors import OptionError

if TYPE_CHECKING:
    from gradgate.reports._report import Report


def written(report: Report, form: str) -> str:
    """Return a report as text of a form: "text", "json", "sarif" or "html"."""
    return FORMS[form](report)


def save(report: Report, path: str | Path) -> None:
    """Write a report to a file; see ``Report.save``."""
    path = Path(path)
    form = form_of(path)
    if form is None:
        raise OptionError(
            f"save: {path.name!r} does not end with {', '.join(_ENDINGS)}, which say in which form to write. "
            "Write report.save('report.html')."
        )
    if not path.resolve().parent.is_dir():
        raise OptionError(f"save: there is no folder {path.parent}. Make it first.")
    path.write_text(written(report, form) + "\n", encoding="utf-8")


def form_of(path: Path) -> str | None:
    """Return the form that a file's ending names, or None."""
    return _ENDINGS.get(path.suffix.lower())


def _text(report: Report) -> str:
    from gradgate.reports._text import to_text

    return to_text(report)


def _json(report: Report) -> str:
    from gradgate.reports._json import to_json

    return to_json(report)


def _sarif(report: Report) -> str:
    from importlib.metadata import version

    from gradgate.reports._sarif import to_sarif

    return to_sarif(report, version=version("gradgate"))


def _html(report: Report) -> str:
    from gradgate.reports.page import to_html

    return to_html(report, report.logs)


FORMS: Mapping[str, Callable[[Report], str]] = {"text": _text, "json": _json, "sarif": _sarif, "html": _html}
_ENDINGS = {".html": "html", ".htm": "html", ".json": "json", ".sarif": "sarif", ".txt": "text"}
