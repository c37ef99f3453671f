"""A report in a file, in the form that its ending names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gradgate.errors import OptionError

if TYPE_CHECKING:
    from gradgate.checker.reports._report import Report

_FOR_THE_PAGE = ("jinja2", "plotly", "pygments")


def written(report: Report, form: str) -> str:
    """Return a report as text of a form: "text", "json", "sarif" or "html"."""
    return _FORMS[form](report)


def save(report: Report, path: str | Path) -> None:
    """Write a report to a file; see ``Report.save``."""
    path = checked_path(path, where="save")
    path.write_text(written(report, form_of(path) or "text") + "\n", encoding="utf-8")


def form_of(path: Path) -> str | None:
    """Return the form that a file's ending names, or None."""
    return _ENDINGS.get(path.suffix.lower())


def checked_path(path: str | Path, *, where: str) -> Path:
    """Return where a report can be written: asked before the run of which it is to tell.

    Raises:
        OptionError: the name's ending is none of the forms, there is no such folder, or what makes the form is
            not installed.
    """
    path = Path(path)
    form = form_of(path)
    if form is None:
        raise OptionError(
            f"{where}: {str(path)!r} has no ending that names a form. Let it end in {', '.join(_ENDINGS)}."
        )
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{where}: {str(path)!r}: there is no folder {path.parent}. Make it first.")
    check_form(form, where=where)
    return path


def check_form(form: str, *, where: str) -> None:
    """Raise OptionError if what makes a form is not installed."""
    missing = [name for name in _FOR_THE_PAGE if form == "html" and importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{where}: a page needs {' and '.join(missing)}, and that is not installed. "
            "Write pip install 'gradgate[show]'."
        )


def _text(report: Report) -> str:
    from gradgate.checker.reports._text import to_text

    return to_text(report)


def _json(report: Report) -> str:
    from gradgate.checker.reports._json import to_json

    return to_json(report)


def _sarif(report: Report) -> str:
    import gradgate
    from gradgate.checker.reports._sarif import to_sarif

    return to_sarif(report, version=gradgate.__version__)


def _html(report: Report) -> str:
    from gradgate.checker.reports.page import to_html

    return to_html(report)


_FORMS: Mapping[str, Callable[[Report], str]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "html": _html,
}
_ENDINGS = {".html": "html", ".json": "json", ".sarif": "sarif", ".txt": "text"}
