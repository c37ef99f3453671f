"""Documents as data: the blocks, headings and links of a markdown page."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from gradgate.checker.reports import Report, to_text

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


def section(page: Path, heading: str) -> str:
    """Return a section with its heading, up to the next heading of that rank."""
    found = re.search(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", read(page), re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def shown_scripts(folder: str) -> dict[Path, str]:
    """Return the scripts of a folder whose findings the rules' pages show, and what each page shows."""
    found = {}
    for page in sorted(ROOT.glob("docs/rules/GG*.md")):
        shown = section(page, "What the checker prints")
        script, printed = re.findall(
            r"^For `(.+)`, saved|^\$ gradgate check .*\n((?s:.*?))\n```", shown, re.MULTILINE
        )
        if script[0].startswith(folder):
            found[ROOT / script[0]] = printed[1]
    return found


def as_train_py(report: Report, script: Path, folder: Path) -> str:
    """Return a report's text as if the script were named train.py and did not mark its lines."""
    text = re.sub(r"  # expect: [a-z-]+$", "", script.read_text("utf-8"), flags=re.MULTILINE)
    copy = folder / "train.py"
    copy.write_text(text, "utf-8")
    findings = tuple(replace(one, file=str(copy)) for one in report.findings if one.file == str(script))
    return to_text(replace(report, findings=findings))
