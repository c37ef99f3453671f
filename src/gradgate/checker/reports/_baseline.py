"""Fingerprints, which identify a finding while its script changes, and baselines, the files of known findings."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from gradgate.checker.analysis._source import function_at, path_to, whole_text
from gradgate.checker.reports._content import source_line
from gradgate.checker.rules import Finding
from gradgate.errors import OptionError
from gradgate.events import Cell, Frame, cell_of

_ROOTS = (".git", ".hg", "pyproject.toml")
_VERSION = 1


def fingerprint(finding: Finding) -> str:
    """Return 16 hexadecimal digits that identify a finding.

    The fingerprint is a hash of the rule, the file's path in its project, the function, and the text of the line.
    It stays the same if other lines change, if the line's indentation or comment changes, and in any checkout of
    the project. Equal lines are numbered from the top of their function, or of their notebook.
    """
    text = _code(source_line(finding.file, finding.line)) or str(finding.line)
    frame = Frame(finding.file, finding.line, "")
    function = function_at(frame)
    first = getattr(function, "lineno", 1)
    above = [_code(source_line(finding.file, line)) for line in range(first, finding.line)]
    cell = cell_of(finding.file)
    if cell is not None:
        earlier = (Cell(cell.notebook, number).file for number in range(1, cell.number))
        above += [_code(line) for file in earlier for line in whole_text(file).splitlines()]
    path = project_path(finding.file if cell is None else cell.notebook)
    named = (finding.code, path, _qualified(frame), text, str(above.count(text)))
    return hashlib.sha256("\0".join(named).encode()).hexdigest()[:16]


def _code(line: str) -> str:
    """Return a line without its comment, with single spaces."""
    return " ".join(re.sub(r"(^|\s)#(\s|$|gradgate).*", "", line).split())


def _qualified(frame: Frame) -> str:
    return ".".join(name for node in path_to(frame.file, frame.line) if (name := getattr(node, "name", "")))


@functools.lru_cache(maxsize=256)
def project_path(file: str) -> str:
    """Return a file's path in its project, or the file's name if there is no project.

    The root of a project is the nearest folder above the file with a repository or a pyproject.toml.
    """
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    for folder in path.parents:
        if any((folder / name).exists() for name in _ROOTS):
            return path.relative_to(folder).as_posix()
    return path.name


def write_baseline(path: Path, findings: Iterable[Finding]) -> None:
    """Write a sorted file of known findings, with enough text for a review of the file."""
    known = [
        {
            "fingerprint": fingerprint(each),
            "code": each.code,
            "file": project_path(each.file),
            "line": source_line(each.file, each.line).strip(),
            "message": each.message,
        }
        for each in findings
    ]
    known.sort(key=lambda entry: (entry["file"], entry["code"], entry["line"], entry["fingerprint"]))
    path.write_text(json.dumps({"version": _VERSION, "findings": known}, indent=2) + "\n", encoding="utf-8")


def read_baseline(path: Path, *, where: str) -> frozenset[str]:
    """Return the fingerprints in a file of known findings.

    Raises:
        OptionError: the file does not exist, or is not a baseline.
    """
    if not path.is_file():
        raise OptionError(
            f"{where}: there is no baseline {str(path)!r}. Write one: gradgate check --write-baseline {path} ..."
        )
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r}, this gradgate reads {_VERSION}")
        return frozenset(str(entry["fingerprint"]) for entry in content["findings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{where}: {str(path)!r} is not a baseline ({type(error).__name__}: {error}). Write it again: "
            f"gradgate check --write-baseline {path} ..."
        ) from None
