"""``gradgate rules`` and ``gradgate explain``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gradgate.checker.reports import rule_page, rule_pages, shown_section
from gradgate.checker.rules import Rule, rules
from gradgate.errors import OptionError

_WIDTH = 100


def list_rules(*, as_json: bool) -> int:
    """Print the code, category, severity and summary of every rule."""
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
    for style in ("bold", "", ""):
        table.add_column(style=style, no_wrap=True)
    for rule in rules():
        table.add_row(rule.code, rule.name, rule.severity, rule.summary)
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


def write_pages(folder: Path) -> int:
    """Write the documentation of the rules: one page per rule, and an index.

    Each page shows the output of ``gradgate check`` for the rule's shortest wrong script. The scripts come from the
    checkout that contains ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tests = folder.resolve().parents[1] / "tests"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        shown = dict(pool.map(partial(_shown, tests), rules()))
    for name, text in rule_pages(shown).items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


def _shown(tests: Path, rule: Rule) -> tuple[str, str]:
    """Check a rule's wrong scripts, the shortest first. Return the first finding of the rule as text."""
    mark = f"  # expect: {rule.name}\n"
    texts = {script: script.read_text("utf-8") for script in tests.glob("**/scripts/wrong/**/*.py")}
    marked = [script for script in texts if mark in texts[script]]
    for script in sorted(marked, key=lambda script: (texts[script].count("\n"), script)):
        ranks = ["torchrun", "--nproc-per-node", "2"] if tests / "ranks" in script.parents else []
        command = ["check", *ranks, "train.py"]
        with TemporaryDirectory() as place:
            Path(place, "train.py").write_text(texts[script].replace(mark, "\n"), "utf-8")
            done = subprocess.run(
                [sys.executable, "-m", "gradgate", *command],
                cwd=place,
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
        source = script.relative_to(tests.parent).as_posix()
        if section := shown_section(rule, source, f"gradgate {' '.join(command)}", done.stdout):
            return rule.code, section
    return rule.code, ""
