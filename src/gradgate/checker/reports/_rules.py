"""The rules' own pages, made from their docstrings."""

from __future__ import annotations

from itertools import groupby

from gradgate.checker.rules import Rule, rules

_MADE = "<!-- Made from the rule's docstring by `gradgate rules --write docs/rules`; change it there. -->"


def rule_page(rule: Rule) -> str:
    """Return what a rule says about itself, as Markdown."""
    return f"# {rule.code}: {rule.name}\n\n*Severity: {rule.severity}.* {_fenced(rule.doc.strip())}\n"


def _fenced(text: str) -> str:
    """Put fences around code that is marked by its indentation, so that it is coloured."""
    lines: list[str] = []
    for is_code, part in groupby(text.splitlines(), key=lambda line: line.startswith("    ")):
        block = list(part)
        lines += ["```python", *(line[4:] for line in block), "```"] if is_code else block
    return "\n".join(lines).replace("```\n\n```python\n", "\n")


def rule_pages() -> dict[str, str]:
    """Return the files of ``docs/rules`` by their names: a page for each rule, and the list of them."""
    # Examples are shown and not run: each is a piece of a loop. "py" is coloured like "python".
    pages = {
        f"{rule.code}.md": f"{_MADE}\n\n{rule_page(rule)}".replace("```python", "```py") for rule in rules()
    }
    return pages | {"index.md": rules_index()}


def rules_index() -> str:
    """Return the list of the rules, as Markdown."""
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.summary} |"
        for rule in rules()
    ]
    head = ["| code | category | severity | what it finds |", "|---|---|---|---|"]
    return "\n".join([_MADE, "", "# What the checker finds", "", *head, *rows]) + "\n"
