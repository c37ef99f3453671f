"""Write docs/rules: a page for each rule, from its docstring and from what the checker prints, and an index.

Run ``python tools/rule_pages.py`` after changing a rule. It checks one script for each rule, which takes a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gradgate.checker.reports import rule_page
from gradgate.checker.rules import RETIRED, Rule, rules

ROOT = Path(__file__).parents[1]
_MADE = "<!-- Made from the rule's docstring by tools/rule_pages.py; change it there. -->"
_NEXT = "## Use instead\n"  # the section before which the page shows what the checker prints


def rule_pages(shown: Mapping[str, str]) -> dict[str, str]:
    """Return the files of ``docs/rules`` by name.

    ``shown`` holds the section of each code that :func:`shown_section` makes.
    """
    index = f"{_MADE}\n\n# What the checker finds\n\n"
    index += "| code | category | severity | what it finds |\n|---|---|---|---|\n"
    pages = {}
    for rule in rules():
        page = rule_page(rule).replace(_NEXT, f"{shown.get(rule.code, '')}{_NEXT}")
        # Each example is a piece of a loop and is not run: the documents' tests run "python" and skip "py".
        pages[f"{rule.code}.md"] = f"{_MADE}\n\n{page}".replace("```python", "```py")
        index += f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.summary} |\n"
    for code, (category, reason) in RETIRED.items():
        index += f"| {code} | {category} | retired | {reason} |\n"
    return pages | {"index.md": index}


def shown_section(code: str, script: str, command: str, printed: str) -> str:
    """Return the section of a page that shows what a command prints of a rule for a script, or ""."""
    entries = re.split(r"\n\n(?=train\.py:\d+  |───)", printed)
    found = next((entry for entry in entries if f" {code} " in entry.partition("\n")[0]), "")
    if not found:
        return ""
    return (
        f"## What the checker prints\nFor `{script}`, saved as `train.py`:\n\n"
        f"```console\n$ {command}\n{found}\n```\n\n"
    )


def _shown(rule: Rule) -> tuple[str, str]:
    """Check a rule's wrong scripts, the shortest first, and show the first finding of the rule."""
    mark = f"  # expect: {rule.name}\n"
    scripts = [*ROOT.glob("corpus/wrong/*/*.py"), *ROOT.glob("tests/ranks/scripts/wrong/*.py")]
    texts = {script: script.read_text("utf-8") for script in scripts}
    marked = [script for script in texts if mark in texts[script]]
    for script in sorted(marked, key=lambda script: (texts[script].count("\n"), script)):
        ranks = ["torchrun", "--nproc-per-node", "2"] if ROOT / "tests/ranks" in script.parents else []
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
        source = script.relative_to(ROOT).as_posix()
        if section := shown_section(rule.code, source, f"gradgate {' '.join(command)}", done.stdout):
            return rule.code, section
    return rule.code, ""


if __name__ == "__main__":
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sections = dict(pool.map(_shown, rules()))
    for name, text in rule_pages(sections).items():
        (ROOT / "docs" / "rules" / name).write_text(text, encoding="utf-8")
