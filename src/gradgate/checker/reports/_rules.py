"""Documentation pages of the rules, generated from the rules' docstrings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby

from gradgate.checker.rules import Rule, rules

_MADE = "<!-- Made from the rule's docstring by `gradgate rules --write docs/rules`; change it there. -->"
_NEXT = "## Use instead\n"  # the checker's output is inserted before this section


def rule_page(rule: Rule, shown: str = "") -> str:
    """Return the page of a rule as Markdown. ``shown`` is the section from :func:`shown_section`."""
    doc = _fenced(rule.doc.strip()).replace(_NEXT, f"{shown}{_NEXT}")
    return f"# {rule.code}: {rule.name}\n\n*Severity: {rule.severity}.* {doc}\n"


def shown_section(rule: Rule, script: str, command: str, printed: str) -> str:
    """Return the section with the rule's finding, cut from the output of a command, or ""."""
    entries = re.split(r"\n\n(?=train\.py:\d+  |───)", printed)
    found = next((entry for entry in entries if f" {rule.code} " in entry.partition("\n")[0]), "")
    if not found:
        return ""
    return (
        f"## What the checker prints\nFor `{script}`, saved as `train.py`:\n\n"
        f"```console\n$ {command}\n{found}\n```\n\n"
    )


def _fenced(text: str) -> str:
    """Turn indented code into fenced code, which renderers highlight."""
    lines: list[str] = []
    for is_code, part in groupby(text.splitlines(), key=lambda line: line.startswith("    ")):
        block = list(part)
        lines += ["```python", *(line[4:] for line in block), "```"] if is_code else block
    return "\n".join(lines).replace("```\n\n```python\n", "\n")


def rule_pages(shown: Mapping[str, str]) -> dict[str, str]:
    """Return the files of ``docs/rules`` by name: one page per rule, and an index.

    ``shown`` maps each code to its section from :func:`shown_section`.
    """
    index = f"{_MADE}\n\n# What the checker finds\n\n"
    index += "| code | category | severity | what it finds |\n|---|---|---|---|\n"
    pages = {}
    for rule in rules():
        page = f"{_MADE}\n\n{rule_page(rule, shown.get(rule.code, ''))}"
        # The examples are fragments that can't run. The tests of the documentation run "python" but skip "py".
        pages[f"{rule.code}.md"] = page.replace("```python", "```py")
        index += f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.summary} |\n"
    return pages | {"index.md": index}
