"""A report as a file: the ending of its name says how it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradgate.errors import OptionError
from gradgate.reports._json import to_json
from gradgate.reports._report import Report
from gradgate.reports._sarif import to_sarif
from gradgate.reports._text import to_text

_WRITERS: dict[str, Callable[[Report], str]] = {".json": to_json, ".sarif": to_sarif, ".txt": to_text}


def save(report: Report, path: str | Path) -> None:
    """Write a report to a file: .json, .sarif or .txt, as its name ends.

    Raises:
        OptionError: the name ends otherwise, or there is no such folder.
    """
    path = checked_path(path, where="save")
    path.write_text(_WRITERS[path.suffix](report) + "\n", "utf-8")


def checked_path(path: str | Path, *, where: str) -> Path:
    """Return where a report can be written: asked before the run of which it is to tell.

    Raises:
        OptionError: the name's ending is none of the formats, or there is no such folder.
    """
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise OptionError(
            f"{where}: {str(path)!r} has no ending that names a format. Let it end in {', '.join(_WRITERS)}."
        )
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{where}: {str(path)!r}: there is no folder {path.parent}. Make it first.")
    return path
