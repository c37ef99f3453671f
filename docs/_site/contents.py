"""The table of contents, read off the pages themselves.

A page that others are found through (the home page, and the README or index of a folder) lists them with a link
and a word of explanation. The same list, in the same order, becomes the sidebar: nobody keeps it a second time, and
a page that the home page does not mention is reported as lost.
"""

import re
from itertools import chain
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

HOME = "docs/index"
FIRST = ("README", "index")
CODE = re.compile(r"GG\d+")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+\.(?:md|py))\)")
NOT_LISTED = {
    "README",
    "README.zh-CN",
    "CONTRIBUTING",
    "CODE_OF_CONDUCT",
    "AGENTS",
    "SECURITY",
    "CHANGELOG",
    "changelog.d/README",
}  # at the top; the home page links to them


def links(text: str, folder: str) -> dict[str, str]:
    """Return the pages that a text links to, and the words of the first link to each."""
    found: dict[str, str] = {}
    for words, target in LINK.findall(text):
        found.setdefault(str(PurePosixPath(normpath(f"{folder}/{target}")).with_suffix("")), words)
    return found


def sections(text: str) -> list[tuple[str, str]]:
    """Return heading and text of each part of the home page's chapter "All pages"."""
    chapter = text.partition("\n## All pages\n")[2].partition("\n## ")[0]
    parts = chapter.split("\n### ")[1:]
    return [(heading, body) for heading, _, body in (part.partition("\n") for part in parts)]


def toctree(pages: dict[str, str], caption: str = "") -> str:
    """Return a hidden table of contents. A page without words is called by its own title."""
    lines = [f"{words} </{page}>".replace("`", "") if words else f"/{page}" for page, words in pages.items()]
    head = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", *head, "", *lines, "```", ""])


def below(docname: str, text: str, known: set[str]) -> dict[str, str]:
    """Return the pages of a folder and of the folders in it, of which only the first page if there is one.

    Pages that the text links to come first. A rule is called by its page's title, which holds its name, too.
    """
    folder = docname.rpartition("/")[0]

    def belongs(page: str) -> bool:
        inside = page.removeprefix(f"{folder}/")
        deep = inside.count("/")
        return (
            page != docname
            and page in known
            and inside != page
            and (deep == 0 or (deep == 1 and (first(page) or no_first(page))))
        )

    def no_first(page: str) -> bool:
        inner = page.rpartition("/")[0]
        return not any(f"{inner}/{name}" in known for name in FIRST)

    linked = {
        page: "" if CODE.fullmatch(words) else words
        for page, words in links(text, folder).items()
        if belongs(page)
    }
    return linked | {page: "" for page in sorted(known) if belongs(page) and page not in linked}


def first(page: str) -> bool:
    """Return whether the other pages of its folder are found through this one."""
    return PurePosixPath(page).name in FIRST


def add_contents(app: Any, docname: str, source: list[str]) -> None:
    """Put the table of contents at the end of a page, where Sphinx looks for it."""
    if docname == HOME:
        trees = (toctree(links(body, "docs"), caption) for caption, body in sections(source[0]))
        source[0] += "".join(chain(trees))
    elif first(docname) and docname not in NOT_LISTED:
        pages = below(docname, source[0], set(app.env.found_docs))
        source[0] += toctree(pages) if pages else ""


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.connect("source-read", add_contents)
    return {"parallel_read_safe": True}
