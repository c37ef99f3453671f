"""``gradgate check --fix``: apply the edits of a report, and check again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gradgate.checker.analysis._run import enumerated
from gradgate.checker.fixes import Rewritten, patch, rewritten_files
from gradgate.checker.reports import Entry, Report, counted

FAILED = "GRADGATE_FAILED"  # in the second check's environment: the file to make if the edited script fails
TRIAL = "GRADGATE_TRIAL"  # in the environment of a check that only tells whether the edited script fails


def write_error(text: str) -> None:
    """Write to the original standard error: the script may have replaced or closed ``sys.stderr``."""
    with suppress(OSError):
        os.write(2, text.encode())


def fix_and_check_again(report: Report, *, yes: bool, command: Sequence[str]) -> int | None:
    """Apply the edits in a report, and run ``command``, the same check without ``--fix``.

    Return the exit code of the second check; None if no edit was made. With ``yes``, don't ask. If the script fails
    only with the edits, restore the files.
    """
    entries = report.entries()
    files = _edited(entries)
    if not files:
        misfits = any(entry.edits for entry in entries)
        offers = "The edits do not fit the file" if misfits else "No finding offers an edit"
        write_error(f"{offers}. Make the changes by hand.\n" if report.findings else "Nothing to fix.\n")
        return None
    sys.stdout.write(f"\n{patch(files)}\n")
    sys.stdout.flush()
    if not yes and not _agrees(files):
        write_error("Nothing was changed.\n")
        return None
    copies = []
    for file in files:
        kept = None if _is_clean(file.path) else _backup(file)
        _write(file, file.after)
        copies += [kept] if kept else []
        where = f"the original is in {kept}" if kept else "git has the original"
        write_error(f"Changed {file.path}; {where}.\n")
    write_error("Checking again.\n")
    with tempfile.TemporaryDirectory() as folder:
        failed = Path(folder) / "failed"
        environment = os.environ | ({} if report.summary.ending else {FAILED: str(failed)})
        done = subprocess.run([sys.executable, "-m", "gradgate", *command], env=environment, check=False)
        if failed.exists():
            for file in files:
                _write(file, file.before)
                write_error(f"Restored {file.path}.\n")
            for copy in copies:
                copy.unlink()
            write_error(_fixed_first(entries, command))
    return done.returncode


def _edited(entries: Iterable[Entry]) -> list[Rewritten]:
    return rewritten_files((entry.finding.file, tuple(entry.edits)) for entry in entries)


def _write(file: Rewritten, text: str) -> None:
    file.path.write_bytes(text.encode(file.encoding))


def _fixed_first(entries: Sequence[Entry], command: Sequence[str]) -> str:
    """Return which mistakes to fix by hand: those without an edit, or else those whose edits fail together."""
    left = [entry for entry in entries if entry.finding.severity != "info" and not entry.edits]
    if left:
        offers = "offers" if len(left) == 1 else "offer"
        return f"First fix {_names(left)}, which {offers} no edit. The edits above may need it.\n"
    failing = [entry for entry in entries if entry.edits]
    if len(failing) > 1:
        write_error(f"Checking the edits of {len(failing)} findings, to see which of them fail.\n")
    for entry in tuple(failing):
        rest = [other for other in failing if other is not entry]
        if rest and _fails(rest, command):
            failing = rest
    if len(failing) == 1:
        return f"First fix {_names(failing)} by hand. The script fails with this edit alone.\n"
    return f"First fix {_names(failing)} by hand. The script fails only with these edits together.\n"


def _names(entries: Iterable[Entry]) -> str:
    return enumerated([f"{entry.finding.code} at {entry.place}" for entry in entries])


def _fails(entries: Iterable[Entry], command: Sequence[str]) -> bool:
    """Return whether the script fails with the edits of these findings. The files stay as they are."""
    files = _edited(entries)
    with tempfile.TemporaryDirectory() as folder:
        failed = Path(folder) / "failed"
        environment = os.environ | {FAILED: str(failed), TRIAL: "1"}
        try:
            for file in files:
                _write(file, file.after)
            check = [sys.executable, "-m", "gradgate", *command]
            subprocess.run(check, env=environment, check=False, capture_output=True)
            return failed.exists()
        finally:
            for file in files:
                _write(file, file.before)


def _agrees(files: Sequence[Rewritten]) -> bool:
    if not sys.stdin.isatty():
        write_error(
            "Standard input is not a terminal, so gradgate cannot ask. Pass --yes to make these edits.\n"
        )
        return False
    write_error(f"Make these edits in {counted(len(files), 'file')}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _is_clean(path: Path) -> bool:
    """Return whether git tracks the file and the file has no uncommitted changes."""
    git = ["git", "-C", str(path.parent), "status", "--porcelain", "--ignored", path.name]
    try:
        status = subprocess.run(git, capture_output=True, check=False)
    except OSError:
        return False
    return status.returncode == 0 and not status.stdout.strip()


def _backup(file: Rewritten) -> Path:
    """Copy the original file to an unused name in the same folder; return the copy's path."""
    names = (f"{file.path.name}.orig{number or ''}" for number in range(10_000))
    kept = next(path for name in names if not (path := file.path.with_name(name)).exists())
    kept.write_bytes(file.before.encode(file.encoding))
    return kept
