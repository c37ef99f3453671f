"""A fix is made where there is one way, and nowhere else. Those of the corpus are made in tests/test_scripts.py."""

import linecache
import sys
from functools import partial
from pathlib import Path

import pytest

from gradgate.checker.analysis import Statement
from gradgate.checker.fixes import Delete, apply, edits_for
from gradgate.checker.rules import Finding, rules

# private: each fix makes its edit at any statement that it fits, and none elsewhere
from gradgate.checker.rules._rule import FixAt
from gradgate.checker.rules.accumulation import _edits
from gradgate.checker.rules.clearing import _cross_loss_leak, _missing_zero_grad, _zero_grad_misplaced
from gradgate.checker.rules.stepping import _clip_misplaced, _scheduler_cadence
from gradgate.events import Frame
from tests.test_scripts import WRONG


def fixed(fix: FixAt, line: int, text: str, folder: Path) -> str | None:
    """Return what a rule's fix makes of a script; None where no edit is offered."""
    file = folder / "train.py"
    file.write_text(text, "utf-8")
    linecache.checkcache(str(file))
    at = Statement.at(Frame(str(file), line, ""))
    assert at is not None
    finding = Finding("GG000", "", "error", str(file), line, "", "", "", fix=fix(at))
    edits = edits_for(finding)
    return "\n".join(apply(text.splitlines(), edits)) + "\n" if edits else None


COUNTED = "for i, x in enumerate(loader):\n    if {}:  # now\n        optimizer.step()\n"


@pytest.mark.parametrize(
    ("fix", "line", "before", "after"),
    [
        (
            partial(_missing_zero_grad._cleared_after, name="opt"),
            2,
            "loss.backward()\nopt.step()\n",
            "loss.backward()\nopt.step()\nopt.zero_grad()\n",
        ),
        (partial(_missing_zero_grad._cleared_after, name="opt"), 1, "opt.zero_grad\n", "opt.zero_grad()\n"),
        (
            _edits.count_from_one,
            2,
            COUNTED.format("i % N == 0"),
            COUNTED.format("(i + 1) % N == 0 or i + 1 == len(loader)"),
        ),
        (_edits.undivided, 1, "loss = a - (b + c) / n\n", "loss = a - (b + c)\n"),
        (_edits.undivided, 1, "größe = f('ä') / len(x)  # ö\n", "größe = f('ä')  # ö\n"),
        (partial(_edits.divided, size=4), 1, "(a + b).backward()\n", "((a + b) / 4).backward()\n"),
        (
            _zero_grad_misplaced._after_the_step,
            2,
            "a.backward()\no.zero_grad()\no.step()\n",
            "a.backward()\no.step()\no.zero_grad()\n",
        ),
    ],
)
def test_a_rule_changes_the_lines_where_there_is_one_way(
    fix: FixAt, line: int, before: str, after: str | None, tmp_path: Path
) -> None:
    assert fixed(fix, line, before, tmp_path) == after


# Each would break or mean something else if the fix were made.
UNCLEAR = {
    "which of the two divisions": (_edits.undivided, 1, "loss = a / b / c\n"),
    "a counter from elsewhere": (
        _edits.count_from_one,
        2,
        COUNTED.format("i % N == 0").replace("loader)", "loader, start)"),
    ),
    "a loop without a length": (
        _edits.count_from_one,
        2,
        COUNTED.format("i % N == 0").replace("loader", "make()"),
    ),
    "a loop without a counter": (
        _edits.count_from_one,
        2,
        "for x in loader:\n    if i % N == 0:\n        optimizer.step()\n",
    ),
    "another counter": (_edits.count_from_one, 2, COUNTED.format("j % N == 0")),
    "a further condition": (_edits.count_from_one, 2, COUNTED.format("i % N == 0 and x")),
    "a loop over a generator": (
        _edits.count_from_one,
        4,
        "def g():\n    yield 1\nfor i, x in enumerate(data):\n    if i % 4 == 0:\n        o.step()\n",
    ),
    "a body on the line of its if": (
        partial(_missing_zero_grad._cleared_after, name="o"),
        2,
        "loss.backward()\nif c: o.step()\n",
    ),
    "a step in a body of one line": (
        _scheduler_cadence._after_step,
        3,
        "for x in y:\n    if c: o.step()\n    s.step()\n",
    ),
    "a schedule in the only loop": (
        _scheduler_cadence._after_epoch,
        3,
        "for x in y:\n    o.step()\n    s.step()\n",
    ),
    "a norm that is read on the way": (
        _clip_misplaced._before_the_step,
        1,
        "n = clip_grad_norm_(p)\nprint(n)\nloss.backward()\no.step()\n",
    ),
    "two steps to clip for": (
        _clip_misplaced._before_the_step,
        4,
        "a.backward()\no.step()\nb.backward()\nclip_grad_norm_(p)\nq.step()\nr.step()\n",
    ),
    "a value in two losses": (
        partial(_cross_loss_leak._apart, own=9, left="G.w"),
        2,
        "fake = G(z)\nd = D(fake)\na = f(d)\nb = g(d)\n",
    ),
    "another backward on the way": (
        partial(_cross_loss_leak._apart, own=1, left="G.w"),
        4,
        "a.backward()\no.step()\nb.backward()\no.zero_grad()\nq.step()\n",
    ),
    "clearing before its own loss": (
        _zero_grad_misplaced._after_the_step,
        3,
        "a.backward()\np.step()\no.zero_grad()\nb.backward()\no.step()\n",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_a_rule_offers_no_edit_that_would_break_or_mean_something_else(case: str, tmp_path: Path) -> None:
    fix, line, text = UNCLEAR[case]
    assert fixed(fix, line, text, tmp_path) is None


def test_what_cannot_be_read_has_no_edits(tmp_path: Path) -> None:
    finding = Finding("GG101", "", "error", str(tmp_path / "gone.py"), 3, "", "", "", fix=(Delete(3),))
    assert edits_for(finding) == ()


def test_on_lines_that_a_fix_does_not_fit_nothing_breaks(tmp_path: Path) -> None:
    rules()  # imports every module of rules
    fixes = {
        value
        for name, module in sorted(sys.modules.items())
        if name.startswith("gradgate.checker.rules.")
        for value in vars(module).values()
        if getattr(value, "__annotations__", None) == {"at": "Statement", "return": "Fix"}
    }
    assert len(fixes) > 15
    for script in [row.path for row in WRONG[::40]]:
        text = script.read_text("utf-8")
        for line in range(1, len(text.splitlines()) + 1, 5):
            at = Statement.at(Frame(str(script), line, ""))
            for fix in fixes if at is not None else ():
                assert at is not None
                edits_for(Finding("GG000", "", "error", str(script), line, "", "", "", fix=fix(at)))
