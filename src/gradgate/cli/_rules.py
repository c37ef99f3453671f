"""``gradgate rules`` and ``gradgate explain``."""

from __future__ import annotations

from gradgate.checker.reports import rule_page
from gradgate.checker.rules import RETIRED, rules
from gradgate.errors import OptionError

_WIDTH = 100


def list_rules() -> int:
    """Print the code, category, severity and summary of every rule. Return the exit code."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for style in ("bold", "", ""):
        table.add_column(style=style, no_wrap=True)
    for rule in rules():
        table.add_row(rule.code, rule.name, rule.severity, rule.summary)
    for code, (category, reason) in RETIRED.items():
        table.add_row(code, category, "retired", reason)
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(table)
    return 0


def explain_rule(name: str) -> int:
    """Print the pages of rules. ``name`` is a code, the beginning of a code ("GG1") or a category."""
    if name.upper() == "GG000":
        raise OptionError("gradgate explain: GG000 means that a rule raised an error. It has no page.")
    code = name.upper() if name.upper().startswith("GG") else "-"
    pages = [rule_page(rule) for rule in rules() if rule.code.startswith(code) or name == rule.name]
    pages += [
        f"# {number} {category}\n\nRetired. {reason}"
        for number, (category, reason) in RETIRED.items()
        if number.startswith(code) or name == category
    ]
    if not pages:
        raise OptionError(
            f"gradgate explain: no rule has the code or category {name!r}. `gradgate rules` lists all rules."
        )
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(highlight=False)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    for page in pages:
        console.print(Markdown(page))
    return 0
