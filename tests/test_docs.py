"""The site of the documents: it builds without a warning, nothing in it is dead or lost, and it loads nothing."""

import json
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gradgate
from gradgate import errors
from gradgate.checker.rules import rules
from tests.interpreter import python

ROOT = Path(__file__).parents[1]
PAGES = ("docs", "examples", "benchmarks", "changelog.d")
HOME = "docs/index.html"
REPOSITORY = "https://code.example/gradgate"
PACKAGES = [f"gradgate.{name}" for name in ("gates", "losses", "planning", "testing", "checker")]
ERRORS = {name for name, it in vars(errors).items() if isinstance(it, type)}
LOADS = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
FIGURE = re.compile(r"\d[\d,]*\.\d+|\d{2,}")


@dataclass
class Page(HTMLParser):
    """What a page refers to, and what in it can be referred to."""

    html: str
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if LOADS.get(tag) in given:
            self.loads.append(given[LOADS[tag]])


@dataclass
class Site:
    """A folder with pages."""

    folder: Path

    def __post_init__(self) -> None:
        files = sorted(self.folder.rglob("*.html"))
        self.pages = {
            file.relative_to(self.folder).as_posix(): Page(file.read_text("utf-8")) for file in files
        }

    def inner(self, name: str, targets: list[str]) -> Iterator[tuple[str, str, str]]:
        """Yield each target inside the site, the file that it is in, and the place in it."""
        for target in targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (self.folder / name).parent / unquote(parts.path) if parts.path else self.folder / name
            yield target, file.resolve().relative_to(self.folder).as_posix(), unquote(parts.fragment)

    def dead(self) -> list[str]:
        """Return the references to files and places that are not there."""
        return [
            f"{name}: {target}"
            for name, page in self.pages.items()
            for target, file, place in self.inner(name, page.links + page.loads)
            if not (self.folder / file).is_file() or (place and place not in self.pages[file].ids)
        ]

    def from_elsewhere(self) -> list[str]:
        """Return what pages and style sheets load from another host."""
        styles = [
            f"{file.name}: {found}"
            for file in self.folder.rglob("*.css")
            for found in re.findall(
                r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\s\"')]+", file.read_text("utf-8")
            )
        ]
        return styles + [
            f"{name}: {target}"
            for name, page in self.pages.items()
            for target in page.loads
            if urlsplit(target).netloc
        ]

    def lost(self) -> set[str]:
        """Return the pages that no chain of links leads to from the home page."""
        seen, ahead = {HOME}, [HOME]
        while ahead:
            name = ahead.pop()
            for _, file, _ in self.inner(name, self.pages[name].links):
                if file in self.pages and file not in seen:
                    seen.add(file)
                    ahead.append(file)
        return (
            self.pages.keys() - seen - {"index.html", "search.html"}
        )  # nothing leads to the redirection; a form to the search


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site").resolve()
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "trees"), "-c", "docs/_site"]
    env = {**os.environ, "REPOSITORY": f"{REPOSITORY}.git"}
    done = python("-m", "sphinx", *options, ".", folder / "html", cwd=ROOT, env=env, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return Site(folder / "html")


@pytest.mark.slow
def test_the_site_has_no_dead_link_and_no_lost_page(site: Site) -> None:
    assert site.dead() == []
    assert site.lost() == set()


@pytest.mark.slow
def test_the_site_loads_nothing_from_another_host(site: Site) -> None:
    assert site.from_elsewhere() == []


@pytest.mark.slow
def test_the_site_names_no_place_of_the_machine_that_made_it(site: Site) -> None:
    places = [str(ROOT), sys.prefix, str(site.folder), str(Path.home())]
    told = [f"{name}: {place}" for name, page in site.pages.items() for place in places if place in page.html]
    assert told == []


@pytest.mark.slow
def test_every_public_name_has_its_place_in_the_reference(site: Site) -> None:
    names = {f"gradgate.{name}" for name in gradgate.__all__}
    names |= {f"gradgate.errors.{name}" for name in ERRORS}
    names |= {f"gradgate.testing.{name}" for name in gradgate.testing.__all__}
    pages = [page for name, page in site.pages.items() if name.startswith("docs/reference/")]
    assert names - set().union(*(page.ids for page in pages)) == set()


@pytest.mark.slow
def test_the_table_of_the_reference_leads_to_the_names_themselves(site: Site) -> None:
    links = site.pages["docs/reference/index.html"].links
    assert {"update.html#gradgate.Accumulator", "plan.html#gradgate.planning.Split"} <= set(links)


@pytest.mark.slow
def test_every_page_has_the_version_and_leads_to_the_repository(site: Site) -> None:
    pages = {name: page for name, page in site.pages.items() if name != "index.html"}  # that is a redirection
    assert [name for name, page in pages.items() if f"Version {gradgate.__version__}" not in page.html] == []
    assert [name for name, page in pages.items() if REPOSITORY not in page.links] == []


@pytest.mark.slow
def test_rules_and_losses_are_found_by_their_names(site: Site) -> None:
    index = json.loads((site.folder / "searchindex.js").read_text("utf-8")[len("Search.setIndex(") : -1])
    page = index["docnames"].index("docs/coupled_losses")
    assert page == index["titleterms"]["infonc"]  # the stem of InfoNCE, as a title, comes first in a search
    sidebar = (site.folder / "docs/rules/GG102.html").read_text("utf-8").partition("</aside>")[0]
    for rule in rules():
        assert f">{rule.code}: {rule.name}</a>" in sidebar


@pytest.mark.slow
def test_the_page_of_the_command_line_has_every_option(site: Site) -> None:
    page = site.pages["docs/reference/command_line.html"]
    assert {"check", "rules", "explain"} <= page.ids
    for option in ("--format", "--output", "--select", "--ignore", "--max-steps", "--max-seconds"):
        assert option in page.html
    assert re.search(r"--write\b(?!-)", page.html) is None  # hidden: ours alone


def anchors(text: str) -> set[str]:
    """Return the places of a page as GitHub names them: its headings in small letters, without their marks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_on_a_code_host(page: Path) -> list[str]:
    """Return the links of a Markdown page to files and headings that are not there."""
    prose = re.sub(r"^```.*?^```$|`[^`]*`", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        parts = urlsplit(link)
        file = page.parent / parts.path if parts.path else page
        gone = not file.exists() or (
            parts.fragment and parts.fragment not in anchors(file.read_text("utf-8"))
        )
        if not parts.scheme and gone:
            dead.append(f"{page.name}: {link}")
    return dead


def test_links_work_on_a_code_host_too(tmp_path: Path) -> None:
    pages = [*ROOT.glob("*.md"), *(page for folder in PAGES for page in (ROOT / folder).rglob("*.md"))]
    assert [link for page in pages for link in dead_on_a_code_host(page)] == []

    page = tmp_path / "page.md"
    page.write_text(
        "# A page's `name` 1.5\n[a](#a-pages-name-15) [b](#a-page-s-name) [c](gone.md)\n", "utf-8"
    )
    assert dead_on_a_code_host(page) == ["page.md: #a-page-s-name", "page.md: gone.md"]


def test_what_is_dead_lost_or_loaded_is_seen(tmp_path: Path) -> None:
    for name, text in {
        "docs/index.html": '<a href="a.html#one">a</a> <a href="../b.html">b</a> <a href="https://x.org">x</a>',
        "docs/a.html": '<p id="two"><img src="https://x.org/a.png"><script src="//x.org/a.js"></script>',
        "docs/c.html": '<link rel="stylesheet" href="style.css">',
        "docs/style.css": "@import 'https://x.org/font.css'; p { background: url(here.png) }",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    site = Site(tmp_path.resolve())

    assert site.dead() == ["docs/index.html: a.html#one", "docs/index.html: ../b.html"]
    assert site.lost() == {"docs/c.html"}
    assert site.from_elsewhere() == [
        "style.css: @import 'https://x.org/font.css",
        "docs/a.html: https://x.org/a.png",
        "docs/a.html: //x.org/a.js",
    ]


def test_the_reference_begins_with_a_table_of_every_public_name() -> None:
    page = (ROOT / "docs/reference/index.md").read_text("utf-8")
    listed = re.findall(r"^\| \[`([\w.]+)`\]", page, re.MULTILINE)
    assert listed[0] == "Accumulator"
    assert len(listed) == len(set(listed))
    names = set(gradgate.__all__) | set(documented())
    for package in map(import_module, PACKAGES):
        names |= {f"{package.__name__}.{name}" for name in {*package.__all__} - {*gradgate.__all__}}
    assert names - set(listed) == set()
    assert [name for name in set(listed) - names if not pkgutil.resolve_name(name)] == []


def documented() -> Iterator[str]:
    """Yield the names that the pages for users explain: those of gradgate itself without its name."""
    pages = {*(ROOT / "docs/reference").glob("*.md")} - {ROOT / "docs/reference/rules_and_events.md"}
    for page in pages:
        module = ""
        directives = r"^\.\. (currentmodule|autofunction|autoclass):: ([\w.]+)"
        for directive, name in re.findall(directives, page.read_text("utf-8"), re.MULTILINE):
            if directive == "currentmodule":
                module = name
            else:
                yield name if "." in name or module == "gradgate" else f"{module}.{name}"


def test_every_error_is_on_its_page_with_what_to_do() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert listed == ERRORS - {"GradgateError", "GradgateWarning"}


def without_a_source(page: str) -> list[str]:
    """Return the figures in tables that stand in none of the results that their section links to."""
    missing = []
    for section in page.split("\n## ")[1:]:
        links = re.findall(r"\((\.\./benchmarks/[\w./-]+\.md)", section)
        results = " ".join((ROOT / "docs" / link).read_text("utf-8") for link in links)
        rows = [line for line in section.splitlines() if line.startswith("|")]
        known = set(FIGURE.findall(results))
        missing += [figure for row in rows for figure in FIGURE.findall(row) if figure not in known]
    return missing


@pytest.mark.parametrize("name", ["performance", "larger_batches"])
def test_every_figure_in_a_table_of_a_page_stands_in_a_result(name: str) -> None:
    page = (ROOT / f"docs/{name}.md").read_text("utf-8")
    assert without_a_source(page) == []
    wrong = re.sub(r"(?m)^(\|.*\| )\d\.\d{3} \|", r"\g<1>9.876 |", page, count=1)
    assert without_a_source(wrong) == ["9.876"]
