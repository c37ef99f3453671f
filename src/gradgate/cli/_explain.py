"""``gradgate rules`` and ``gradgate explain``: what the rules say of themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gradgate.checker.reports import rule_page, rule_pages
from gradgate.checker.rules import rules
from gradgate.errors import OptionError

_WIDTH = 100


def list_rules(*, as_json: bool) -> int:
    """Print every rule: code, severity, category, and what it finds."""
    if as_json:
        records = [
            {"code": rule.code, "category": rule.name, "severity": rule.severity, "summary": rule.summary}
            for rule in rules()
        ]
        sys.stdout.write(json.dumps(records, indent=2, ensure_ascii=False) + "\n")
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for rule in rules():
        table.add_row(rule.code, rule.name, rule.severity, rule.summary)
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(table)
    return 0


def explain_rule(name: str) -> int:
    """Print the page of a rule, or those of all rules of a category, or of a beginning: GG1."""
    if name.upper() == "GG000":
        raise OptionError(
            "gradgate explain: GG000 says that a rule of gradgate's failed: there is no more to it."
        )
    code = name.upper() if name.upper().startswith("GG") else "-"
    pages = [rule_page(rule) for rule in rules() if rule.code.startswith(code) or name == rule.name]
    if not pages:
        raise OptionError(
            f"gradgate explain: no rule has the code or category {name!r}. `gradgate rules` lists them all."
        )
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    for page in pages:
        console.print(Markdown(page))
    return 0


def write_pages(folder: Path) -> int:
    """Write the documents' pages: one for each rule, and the list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in rule_pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0
