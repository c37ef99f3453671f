"""Documents as data: the blocks, headings and links of a markdown page."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: the word behind the fence, and what stands inside."""

    language: str
    text: str


def read(page: Path) -> str:
    return page.read_text("utf-8")


def blocks(page: Path) -> list[Block]:
    return [Block(*one.groups()) for one in _FENCE.finditer(read(page))]


def links(page: Path) -> list[str]:
    """Return where a page's links lead, those inside of code left out."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", read(page))))


def anchors(page: Path) -> set[str]:
    """Return what may stand behind a ``#``: headings as code hosts spell them."""
    headings = _HEADING.findall(_FENCE.sub("", read(page)))
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def title(page: Path) -> str:
    return read(page).splitlines()[0].removeprefix("# ")
