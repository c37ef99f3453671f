"""Translations say the same: their code, their output and their links are those of the English page."""

import ast
import re
from pathlib import Path

import pytest

from tests.pages import ROOT, Block, blocks, links, read

ENGLISH = [ROOT / "README.md", ROOT / "docs/tour.md"]


def chinese(page: Path) -> Path:
    return page.with_suffix(".zh-CN.md")


def code_of(block: Block) -> str:
    """Return what a block does: its comments and docstrings may be in any language, all else may not."""
    if block.language != "python":
        return re.sub(r" +# .*$", "", block.text, flags=re.MULTILINE)
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree)


def shape(page: Path) -> list[str]:
    """Return what stands at the beginning of each line outside of blocks that is more than running text."""
    text = re.sub(r"^```.*?^```$", "```", read(page), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^(?:#+ |- |\||```)", text, re.MULTILINE)


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_the_code_of_a_translation_is_that_of_the_page(page: Path) -> None:
    ours, theirs = blocks(page), blocks(chinese(page))
    assert [one.language for one in theirs] == [one.language for one in ours]
    for one, other in zip(ours, theirs, strict=True):
        assert code_of(other) == code_of(one)


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_a_translation_has_the_headings_lists_and_tables_of_the_page(page: Path) -> None:
    assert shape(chinese(page)) == shape(page)


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_page_and_translation_link_to_each_other_and_to_the_same_places(page: Path) -> None:
    ours, theirs = links(page), links(chinese(page))
    assert chinese(page).name in ours[:1]
    assert page.name in theirs[:1]
    own = {page.name, chinese(page).name, "docs/tour.md", "docs/tour.zh-CN.md"}
    own |= {"../README.md#install", "../README.zh-CN.md#安装"}
    assert [link for link in theirs if link not in own] == [link for link in ours if link not in own]


def test_code_that_differs_is_not_taken_for_the_same() -> None:
    def python(text: str) -> str:
        return code_of(Block("python", text))

    assert python("x = 1  # one") == python("x = 1  # 一")
    assert python('def f():\n    """One."""\n    return 1') == python('def f():\n    """一"""\n    return 1')
    assert python("x = 1") != python("x = 2")
    assert python('budget = "4MiB"') != python('budget = "8MiB"')
