"""Select findings by code or category, and silence them by comments in the source."""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gradgate.checker.analysis._source import same_statement, whole_text
from gradgate.checker.reports._words import place_of
from gradgate.checker.rules import RETIRED, Finding, rules
from gradgate.errors import OptionError
from gradgate.events import Frame

_COMMENT = re.compile(r"#\s*gradgate:\s*ignore(?!\w)(?:\s*\[(?P<names>[^\]]*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Selection:
    """Reports the findings that match ``select`` but not ``ignore``. An empty ``select`` matches all findings.

    Both hold codes ("GG103"), beginnings of codes ("GG1"), and categories ("accumulation-window").
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
    """Check the names, and return a selection. One string may hold several names, separated by commas.

    Raises:
        OptionError: no rule has such a code or category.
    """
    return Selection(_checked(select, f"{where}: select"), _checked(ignore, f"{where}: ignore"))


@dataclass(frozen=True, slots=True)
class Ignore:
    """A comment ``# gradgate: ignore[GG103] and why``. Without names, it silences every rule."""

    file: str
    line: int
    names: tuple[str, ...] | None

    def covers(self, finding: Finding) -> bool:
        """Return whether the comment is on a line of the finding's statement and names the finding's rule."""
        here, there = Frame(self.file, self.line, ""), Frame(finding.file, finding.line, "")
        return (self.names is None or _named(finding, self.names)) and same_statement(here, there)

    def misnamed(self) -> Iterator[str]:
        """Yield a note for each unknown name."""
        for name, hint in _unknown(self.names or ()):
            yield f"{self}: `# gradgate: ignore[{name}]` has no effect: no rule has that code or category.{hint}"

    def __str__(self) -> str:
        return place_of(self.file, self.line)


@functools.lru_cache(maxsize=64)
def ignores_in(file: str) -> tuple[Ignore, ...]:
    """Return the comments of a file that silence findings."""
    found = ((line, _COMMENT.search(text)) for line, text in _comments(whole_text(file)).items())
    return tuple(
        Ignore(file, line, None if comment["names"] is None else _split(comment["names"]))
        for line, comment in found
        if comment is not None
    )


def _comments(text: str) -> Mapping[int, str]:
    """Return the comments of a source by line, or all lines if a notebook cell isn't Python."""
    if "gradgate" not in text:
        return {}
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return dict(enumerate(text.splitlines(), 1))
    return {each.start[0]: each.string for each in tokens if each.type == tokenize.COMMENT}


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
    for name, hint in _unknown(names):
        raise OptionError(
            f"{where}: no rule has the code or category {name!r}.{hint} `gradgate rules` lists all rules."
        )
    return names


def _unknown(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that no rule has, each with a suggestion."""
    known = [("GG000", ""), *((rule.code, rule.name) for rule in rules())]
    known += [(code, category) for code, (category, _) in RETIRED.items()]
    for name in names:
        if not any(_matches(name, code, category) for code, category in known):
            close = get_close_matches(name, [each for pair in known for each in pair], n=1)
            yield name, f" Did you mean {close[0]!r}?" if close else ""
