"""Which findings are wanted: chosen by code or category, silenced by a comment in the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from gradgate.checker.reports._source import source_line
from gradgate.checker.reports._words import near
from gradgate.checker.rules import Finding, rules
from gradgate.errors import OptionError

_COMMENT = re.compile(r"#\s*gradgate:\s*ignore(?!\w)(?:\s*\[(?P<names>[^\]]*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Selection:
    """What to report: a finding that ``select`` names (all, where it is empty) and ``ignore`` does not.

    A name is a code ("GG103"), the beginning of one ("GG1"), or a category ("accumulation-window").
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def takes(self, finding: Finding) -> bool:
        """Say whether a finding is wanted."""
        wanted = not self.select or _named(finding, self.select)
        return wanted and not _named(finding, self.ignore)


def selection(
    *, select: str | Iterable[str] = (), ignore: str | Iterable[str] = (), where: str = "watch"
) -> Selection:
    """Return a checked selection; names may stand in one text, with commas between.

    Raises:
        OptionError: no rule has such a code or category.
    """
    return Selection(_checked(select, f"{where}: select"), _checked(ignore, f"{where}: ignore"))


def silenced(finding: Finding) -> bool:
    """Say whether the finding's line carries ``# gradgate: ignore`` or ``# gradgate: ignore[GG103]``."""
    comment = _COMMENT.search(source_line(finding.file, finding.line))
    if comment is None:
        return False
    names = comment["names"]
    return names is None or _named(finding, _split(names))


def misnamed(finding: Finding) -> Iterator[str]:
    """Yield what is wrong with the comment on a finding's line: it names what is no rule."""
    comment = _COMMENT.search(source_line(finding.file, finding.line))
    for name in _split((comment and comment["names"]) or ""):
        if not _is_known(name):
            yield (
                f"{near(finding.file)}:{finding.line}: `# gradgate: ignore[{name}]` silences nothing: no rule has "
                f"that code or category.{_hint(name)}"
            )


def _named(finding: Finding, names: Iterable[str]) -> bool:
    return any(
        name == finding.category or (name.startswith("GG") and finding.code.startswith(name))
        for name in names
    )


def _split(names: str | Iterable[str]) -> tuple[str, ...]:
    parts = [part for text in ([names] if isinstance(names, str) else names) for part in text.split(",")]
    return tuple(
        name.upper() if name[:2].upper() == "GG" else name for part in parts if (name := part.strip())
    )


def _checked(names: str | Iterable[str], where: str) -> tuple[str, ...]:
    names = _split(names)
    for name in names:
        if not _is_known(name):
            raise OptionError(
                f"{where} names {name!r}, and no rule has that code or category.{_hint(name)} "
                "`gradgate rules` lists them all."
            )
    return names


def _known() -> list[str]:
    return ["GG000", *(rule.code for rule in rules()), *sorted({rule.name for rule in rules()})]


def _is_known(name: str) -> bool:
    return name in _known() or (name.startswith("GG") and any(code.startswith(name) for code in _known()))


def _hint(name: str) -> str:
    close = get_close_matches(name, _known(), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
