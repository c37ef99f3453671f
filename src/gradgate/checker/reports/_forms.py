"""The formats of a report, and the checks of its output file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gradgate.checker.fixes import patch, rewritten_files
from gradgate.checker.reports._content import Content
from gradgate.checker.reports._json import to_json, to_sarif
from gradgate.checker.reports._text import to_text
from gradgate.errors import OptionError

_FORMATS = {".html": "html", ".json": "json", ".sarif": "sarif", ".txt": "text"}
_FOR_THE_PAGE = ("jinja2", "plotly", "pygments")


def written(report: Content, form: str) -> str:
    """Return a report as "text", "json", "sarif" or "html", or the patch of its edits as "diff"."""
    if form == "diff":
        edits = ((entry.finding.file, tuple(entry.edits)) for entry in report.entries())
        return patch(rewritten_files(edits)).removesuffix("\n")
    if form == "html":
        from gradgate.checker.reports.page import to_html

        return to_html(report)
    if form == "sarif":
        return to_sarif(report)
    return to_json(report) if form == "json" else to_text(report)


def form_of(path: Path) -> str | None:
    """Return the format for a file's extension, or None."""
    return _FORMATS.get(path.suffix.lower())


def checked_path(path: str | Path, *, where: str) -> Path:
    """Check before the run that a report can be written to a file. Return the path.

    Raises:
        OptionError: the extension is unknown, the folder does not exist, or the format needs a package that is not
            installed.
    """
    path = Path(path)
    form = form_of(path)
    if form is None:
        raise OptionError(
            f"{where}: the extension of {str(path)!r} is unknown. Use one of {', '.join(_FORMATS)}."
        )
    check_output(path, form, where=where)
    return path


def check_output(path: Path | None, form: str, *, where: str) -> None:
    """Raise OptionError if a report in this format can't be written to the file. None stands for a stream."""
    missing = [name for name in _FOR_THE_PAGE if form == "html" and importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{where}: format html needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed. Run pip install 'gradgate[show]'."
        )
    if path is not None and path.is_dir():
        raise OptionError(f"{where}: {str(path)!r} is a folder. Name a file: {str(path / 'report.txt')!r}.")
    if path is not None and not path.absolute().parent.is_dir():
        raise OptionError(f"{where}: {str(path)!r} is in a folder that does not exist. Create it first.")
