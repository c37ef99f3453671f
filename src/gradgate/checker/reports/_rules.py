"""Documentation pages of the rules, generated from the rules' docstrings."""

from __future__ import annotations

from itertools import groupby

from gradgate.checker.rules import Rule


def rule_page(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    return f"# {rule.code}: {rule.name}\n\n*Severity: {rule.severity}.* {_fenced(rule.doc.strip())}\n"


def _fenced(text: str) -> str:
    """Turn indented code into fenced code, which renderers highlight."""
    lines: list[str] = []
    for is_code, part in groupby(text.splitlines(), key=lambda line: line.startswith("    ")):
        block = list(part)
        lines += ["```python", *(line[4:] for line in block), "```"] if is_code else block
    return "\n".join(lines).replace("```\n\n```python\n", "\n")
