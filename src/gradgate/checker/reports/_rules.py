"""The pages of the rules, generated from their docstrings."""

from __future__ import annotations

from itertools import groupby

from gradgate.checker.rules import Rule, rules

_MADE = "<!-- Made from the rule's docstring by `gradgate rules --write docs/rules`; change it there. -->"


def rule_page(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    return f"# {rule.code}: {rule.name}\n\n*Severity: {rule.severity}.* {_fenced(rule.doc.strip())}\n"


def _fenced(text: str) -> str:
    """Fence indented code, so that it is highlighted."""
    lines: list[str] = []
    for is_code, part in groupby(text.splitlines(), key=lambda line: line.startswith("    ")):
        block = list(part)
        lines += ["```python", *(line[4:] for line in block), "```"] if is_code else block
    return "\n".join(lines).replace("```\n\n```python\n", "\n")


def rule_pages() -> dict[str, str]:
    """Return the files of ``docs/rules`` by name: one page for each rule, and an index."""
    # Each example is a piece of a loop and is not run: the documents' tests run "python" and skip "py".
    pages = {
        f"{rule.code}.md": f"{_MADE}\n\n{rule_page(rule)}".replace("```python", "```py") for rule in rules()
    }
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.summary} |"
        for rule in rules()
    ]
    head = [
        _MADE,
        "",
        "# What the checker finds",
        "",
        "| code | category | severity | what it finds |",
        "|---|---|---|---|",
    ]
    return pages | {"index.md": "\n".join([*head, *rows]) + "\n"}
