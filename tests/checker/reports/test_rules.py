from pathlib import Path

import pytest

from gradgate.checker.reports import rule_page, rule_pages
from gradgate.checker.rules import Rule, rules

PAGES = Path(__file__).parents[2] / "docs" / "rules"
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


@pytest.mark.skipif(not PAGES.is_dir(), reason="the pages are not made yet")
def test_the_pages_of_the_documents_are_those_of_the_rules() -> None:
    found = {path.name: path.read_text("utf-8") for path in PAGES.iterdir()}
    assert found == rule_pages(), "make them anew: gradgate rules --write docs/rules"
