"""Which findings to report: selected by code or category, silenced by a comment in the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from gradgate.checker.reports._content import source_line
from gradgate.checker.reports._words import short_path
from gradgate.checker.rules import Finding, rules
from gradgate.errors import OptionError

_COMMENT = re.compile(r"#\s*gradgate:\s*ignore(?!\w)(?:\s*\[(?P<names>[^\]]*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Selection:
    """What to report: findings that ``select`` names (all, if it is empty) and ``ignore`` does not.

    A name is a code ("GG103"), the beginning of one ("GG1"), or a category ("accumulation-window").
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def takes(self, finding: Finding) -> bool:
        """Return whether to report a finding."""
        wanted = not self.select or _named(finding, self.select)
        return wanted and not _named(finding, self.ignore)


def selection(
    *, select: str | Iterable[str] = (), ignore: str | Iterable[str] = (), where: str = "watch"
) -> Selection:
    """Return a checked selection. A text may hold several names, separated by commas.

    Raises:
        OptionError: no rule has such a code or category.
    """
    return Selection(_checked(select, f"{where}: select"), _checked(ignore, f"{where}: ignore"))


def silenced(finding: Finding) -> bool:
    """Return whether the finding's line has a comment ``# gradgate: ignore`` or ``# gradgate: ignore[GG103]``."""
    comment = _COMMENT.search(source_line(finding.file, finding.line))
    if comment is None:
        return False
    return comment["names"] is None or _named(finding, _split(comment["names"]))


def misnamed(finding: Finding) -> Iterator[str]:
    """Yield a note for each name in the comment on a finding's line that no rule has."""
    comment = _COMMENT.search(source_line(finding.file, finding.line))
    for name in _split((comment and comment["names"]) or ""):
        if not _is_known(name):
            yield (
                f"{short_path(finding.file)}:{finding.line}: `# gradgate: ignore[{name}]` has no effect: no "
                f"rule has that code or category.{_hint(name)}"
            )


def _named(finding: Finding, names: Iterable[str]) -> bool:
    return any(_matches(name, finding.code, finding.category) for name in names)


def _matches(name: str, code: str, category: str) -> bool:
    return name == category or (name.startswith("GG") and code.startswith(name))


def _split(names: str | Iterable[str]) -> tuple[str, ...]:
    parts = [
        part.strip() for text in ([names] if isinstance(names, str) else names) for part in text.split(",")
    ]
    return tuple(part.upper() if part[:2].upper() == "GG" else part for part in parts if part)


def _checked(names: str | Iterable[str], where: str) -> tuple[str, ...]:
    names = _split(names)
    for name in names:
        if not _is_known(name):
            raise OptionError(
                f"{where}: no rule has the code or category {name!r}.{_hint(name)} "
                "`gradgate rules` lists all rules."
            )
    return names


def _known() -> list[tuple[str, str]]:
    return [("GG000", ""), *((rule.code, rule.name) for rule in rules())]


def _is_known(name: str) -> bool:
    return any(_matches(name, code, category) for code, category in _known())


def _hint(name: str) -> str:
    close = get_close_matches(name, [each for names in _known() for each in names], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
