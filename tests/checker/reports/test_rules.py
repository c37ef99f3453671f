import pytest

from gradgate.checker.reports import rule_page
from gradgate.checker.rules import Rule, rules
from tests import pages
from tools.rule_pages import rule_pages, shown_section

PAGES = pages.ROOT / "docs" / "rules"
SECTIONS = ("What it does", "Why is this bad?", "Example", "Use instead", "Known limits", "Sources")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_every_rule_explains_itself(rule: Rule) -> None:
    page = rule_page(rule)
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(SECTIONS)
    assert page.startswith(f"# {rule.code}: {rule.name}\n\n*Severity: {rule.severity}.* {rule.summary}")


def test_indented_code_is_fenced_and_the_rest_left_alone() -> None:
    doc = "Finds it.\n\n## Example\n    for x in y:\n\n        step()\n\nand no more."
    rule = Rule("GG999", "made-up", "error", doc, lambda run: iter(()))
    assert rule_page(rule) == (
        "# GG999: made-up\n\n*Severity: error.* Finds it.\n\n## Example\n"
        "```python\nfor x in y:\n\n    step()\n```\n\nand no more.\n"
    )


def test_a_page_shows_the_finding_of_its_rule() -> None:
    printed = (
        "── train.py ───\n\ntrain.py:1  note  GG405 other\n\n  It.\n\n"
        "train.py:2  error  GG999 made-up\n\n  What.\n\n─────\nFound 1 error.\n"
    )
    shown = shown_section("GG999", "tests/a.py", "gradgate check train.py", printed)
    assert shown == (
        "## What the checker prints\nFor `tests/a.py`, saved as `train.py`:\n\n"
        "```console\n$ gradgate check train.py\ntrain.py:2  error  GG999 made-up\n\n  What.\n```\n\n"
    )
    assert shown_section("GG998", "tests/a.py", "gradgate check train.py", printed) == ""
    assert f"{shown}## Use instead" in rule_pages({"GG101": shown})["GG101.md"]


def test_the_pages_of_the_documents_are_those_of_the_rules() -> None:
    found = {path.name: path.read_text("utf-8") for path in PAGES.iterdir()}
    # Whether the checker prints this is for tests/test_scripts.py and tests/ranks, which run the scripts.
    shown = {page.stem: pages.section(page, "What the checker prints") for page in PAGES.glob("GG*.md")}
    assert "" not in shown.values()
    assert found == rule_pages(shown), "make them anew: python tools/rule_pages.py"
