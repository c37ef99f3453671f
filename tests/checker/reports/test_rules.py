import pytest

from gradgate.checker.reports import rule_page, rule_pages, shown_section
from gradgate.checker.rules import Rule, rules
from tests import pages

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


def test_what_is_printed_stands_between_the_example_and_what_to_use_instead() -> None:
    rule = Rule(
        "GG999",
        "made-up",
        "error",
        "It.\n\n## Example\n    a()\n\n## Use instead\n    b()",
        lambda run: iter(()),
    )
    printed = (
        "── train.py ───\n\ntrain.py:1  note  GG405 other\n\n  It.\n\n"
        "train.py:2  error  GG999 made-up\n\n  What.\n\n─────\nFound 1 error.\n"
    )
    shown = shown_section(rule, "tests/a.py", "gradgate check train.py", printed)
    assert shown == (
        "## What the checker prints\nFor `tests/a.py`, saved as `train.py`:\n\n"
        "```console\n$ gradgate check train.py\ntrain.py:2  error  GG999 made-up\n\n  What.\n```\n\n"
    )
    assert (
        shown_section(rule, "tests/a.py", "gradgate check train.py", printed.replace("GG999", "GG998")) == ""
    )
    page = rule_page(rule, shown)
    assert page == rule_page(rule).replace("## Use instead", f"{shown}## Use instead")
    assert shown in page


def test_the_pages_of_the_documents_are_those_of_the_rules() -> None:
    found = {path.name: path.read_text("utf-8") for path in PAGES.iterdir()}
    # Whether the checker prints this is for tests/test_scripts.py and tests/ranks, which run the scripts.
    shown = {page.stem: pages.section(page, "What the checker prints") for page in PAGES.glob("GG*.md")}
    assert "" not in shown.values()
    assert found == rule_pages(shown), "make them anew: gradgate rules --write docs/rules"
