"""``gradgate check --fix``: apply the edits of a report, and check again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gradgate.checker.analysis._run import enumerated
from gradgate.checker.fixes import Rewritten, patch, rewritten_files
from gradgate.checker.reports import Report, counted

FAILED = "GRADGATE_FAILED"  # in the second check's environment: the file to make if the edited script fails


def write_error(text: str) -> None:
    """Write to the original standard error: the script may have replaced or closed ``sys.stderr``."""
    with suppress(OSError):
        os.write(2, text.encode())


def fix_and_check_again(report: Report, *, yes: bool, command: Sequence[str]) -> int | None:
    """Apply the edits in a report, and run ``command``, the same check without ``--fix``.

    Return the exit code of the second check; None if no edit was made. With ``yes``, don't ask. If the script fails
    only with the edits, restore the files.
    """
    files = rewritten_files((entry.finding.file, tuple(entry.edits)) for entry in report.entries())
    if not files:
        misfits = any(entry.edits for entry in report.entries())
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
        file.path.write_bytes(file.after.encode(file.encoding))
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
                file.path.write_bytes(file.before.encode(file.encoding))
                write_error(f"Restored {file.path}.\n")
            for copy in copies:
                copy.unlink()
            write_error(_fixed_first(report))
    return done.returncode


def _fixed_first(report: Report) -> str:
    """Return which mistakes to fix by hand before the edits can work; "" if every mistake has an edit."""
    left = [each for each in report.entries() if each.finding.severity != "info" and not each.edits]
    if not left:
        return ""
    names = enumerated([f"{each.finding.code} at {each.place}" for each in left])
    offers = "offers" if len(left) == 1 else "offer"
    return f"First fix {names}, which {offers} no edit. The edits above may need it.\n"


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
