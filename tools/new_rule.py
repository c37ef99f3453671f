"""Write the files that a new rule begins with: ``python tools/new_rule.py clip-without-effect GG306``.

docs/writing_a_rule.md shows the way from there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from gradgate.checker.rules import rules

_PACKAGES = {
    "1": "accumulation",
    "2": "clearing",
    "3": "stepping",
    "4": "flow",
    "5": "ownership",
    "6": "lifetime",
}
_RULES, _SCRIPTS = Path("src/gradgate/checker/rules"), Path("corpus")

_RULE = '''"""A sentence that says what is wrong.

## What it does
The events that the rule reads, and the condition for a finding.

## Why is this bad?
The effect on the update.

## Example
    the lines with the mistake

## Use instead
    the same lines without the mistake

## Known limits
Mistakes that the rule misses, and code that it does not report because it may be intended.

## Sources
Where the mistake is described: documentation, a paper, a public issue.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import {package} as texts
from gradgate.events import Stepped


def _judge(run: Run) -> Iterator[Finding]:
    for event in run.of(Stepped):  # docs/reference/rules_and_events.md lists all events and their fields
        if _is_wrong(event):
            yield RULE.say(event.site, texts.{text})
            return


def _is_wrong(event: Stepped) -> bool:
    return False


RULE = Rule("{code}", "{name}", "warning", __doc__ or "", _judge)
'''

_TEXT = """
# {code}

{text} = Text(
    "What happened, with numbers.",
    "The effect on the update, in a sentence.",
    "What to write.",
)
"""

_SCRIPT = '''"""{says}"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step(){marker}
print(f"loss {{loss.item():.3f}}")
'''


def new_rule(name: str, code: str, folder: Path) -> None:
    """Write a rule, its text, a wrong and a right script, and their rows in the index, and print the paths."""
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name):
        sys.exit(f"new_rule: {name!r} is not a rule's name. Write it like 'clip-misplaced'.")
    if not re.fullmatch(r"GG[1-6]\d\d", code):
        sys.exit(f"new_rule: {code!r} is not a code. Codes go from GG101 to GG699.")
    for rule in rules():
        if name == rule.name or code == rule.code:
            sys.exit(f"new_rule: {rule.code} is {rule.name} already. Choose another name and code.")
    wrong = _SCRIPT.format(says="What is wrong, in a sentence.", marker=f"  # expect: {name}")
    right = _SCRIPT.format(says="What might look wrong here, and isn't.", marker="")
    package, text = _PACKAGES[code[2]], name.replace("-", "_").upper()
    judged = _RULE.format(code=code, name=name, package=package, text=text)
    files = {
        _RULES / package / f"_{text.lower()}.py": judged,
        _SCRIPTS / "wrong" / name / "first.py": wrong,
        _SCRIPTS / "right" / name / "first.py": right,
    }
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8") as file:  # never overwrites
            file.write(content)
        sys.stdout.write(f"{path.as_posix()}\n")
    texts = _RULES / "texts" / f"{package}.py"
    (folder / texts).parent.mkdir(parents=True, exist_ok=True)
    with (folder / texts).open("a", encoding="utf-8") as file:
        file.write(_TEXT.format(code=code, text=text))
    sys.stdout.write(f"{texts.as_posix()}\n")
    with (folder / _SCRIPTS / "index.jsonl").open("a", encoding="utf-8") as index:
        for kind in ({"category": name, "code": code}, {"topic": name}):
            script = f"{'wrong' if 'code' in kind else 'right'}/{name}/first"
            index.write(json.dumps({"script": script, **kind, "made": "project", "regression": True}) + "\n")
    sys.stdout.write(f"{(_SCRIPTS / 'index.jsonl').as_posix()}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="like clip-misplaced")
    parser.add_argument("code", help="a code that is free, like GG306")
    asked = parser.parse_args()
    new_rule(asked.name, asked.code, Path(__file__).parents[1])
