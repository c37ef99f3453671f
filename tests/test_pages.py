"""What holds for documents as such: links lead somewhere, and what the checker is shown to say it says."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from gradgate.checker.rules import rules
from tests import pages
from tests.interpreter import python
from tests.pages import ROOT

CASES = sorted(ROOT.glob("docs/cases/*.md"))
WIDEST = 118  # characters of code that the site shows at 1280 pixels without cutting a line
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")})


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    for link in pages.links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in pages.anchors(target), link


def test_only_readme_says_how_to_install_gradgate() -> None:
    install = re.compile(r"\b(pip|pipx|uvx?) [^`\n]*(gradgate\b|\.\[|dist/)")
    said = [name(page) for page in PAGES if install.search(pages.read(page))]
    assert said == ["CHANGELOG.md", "README.md", "README.zh-CN.md"]  # the changelog says how it was


def test_readme_counts_the_rules() -> None:
    assert f"gradgate's [{len(rules())} rules](docs/rules/index.md)" in pages.read(ROOT / "README.md")


@pytest.mark.parametrize("page", [*ROOT.glob("docs/*.md"), *CASES], ids=name)
def test_code_shows_what_it_prints_and_is_as_wide_as_a_page(page: Path) -> None:
    code = [block for block in pages.blocks(page) if block.language in ("python", "py", "text")]
    assert [line for block in code for line in block.text.splitlines() if len(line) > WIDEST] == []
    scaffolding = re.compile(r"assert |from pytest import|with (raises|warns)\(")
    assert [line for block in code for line in block.text.splitlines() if scaffolding.match(line)] == []


def test_the_index_of_cases_asks_the_question_of_each_page() -> None:
    index = ROOT / "docs/cases/index.md"
    asked = dict(re.findall(r"^- \[(.+)\]\((.+)\)$", pages.read(index), re.MULTILINE))
    answered = {pages.title(page): page.name for page in CASES if page != index}
    assert asked == answered
    assert all(question.endswith("?") for question in asked)


@pytest.mark.parametrize("page", [page for page in CASES if page.name != "index.md"], ids=name)
def test_a_case_has_a_script_and_says_what_to_write_and_what_the_checker_says(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", pages.read(page), re.MULTILINE)
    assert headings[-2:] == ["In your loop", "What the checker says"]
    assert any(link.startswith("../../examples/") and link.endswith(".py") for link in pages.links(page))
    known = {rule.code for rule in rules()}
    said = set(re.findall(r"GG\d{3}", pages.read(page).partition("## What the checker says")[2]))
    assert said
    assert said <= known


def scripts() -> list[object]:
    """Return each script of a case that begins with its file's name, and what is shown of its check."""
    found = []
    for page in CASES:
        blocks = pages.blocks(page)
        for one, other in pairwise(blocks):
            if one.text.startswith("# train.py\n"):
                found.append(pytest.param(one.text, other.text, id=name(page)))
    return found


@pytest.mark.parametrize(("script", "shown"), scripts())
def test_a_script_of_a_case_gets_the_findings_that_are_shown(script: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script, "utf-8")
    command, *lines = shown.splitlines()
    assert command == "$ gradgate check train.py"
    done = python("-m", *command.split()[1:], cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in printed if line in lines] == lines
