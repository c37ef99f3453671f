"""Changes of source: what each kind does, what it leaves alone, and when it is not made."""

import linecache
from pathlib import Path

import pytest

from gradgate.checker import fixes
from gradgate.checker.fixes import (
    Delete,
    Edit,
    Fix,
    Insert,
    Move,
    Replace,
    apply,
    edits_for,
)
from gradgate.checker.rules import Finding

SOURCE = """\
import torch

for i, (x, y) in enumerate(loader):
    loss = (  # why
        f("a", x)  # inner
        + 1
    )

    # clear first
    opt.zero_grad()
    loss.backward()

    # now step
    opt.step()
    if i % 4 == 0:
        with torch.no_grad():
            h = g(x,
                  y)
    n += 1

@torch.no_grad()
@cached
def k(z):
    return z.sum() / 4  # end
"""


def made(source: str, fix: Fix, folder: Path) -> str | None:
    """Return the source with a fix made; None where no edit is offered."""
    file = folder / "train.py"
    file.write_bytes(source.encode())
    linecache.checkcache(str(file))
    edits = edits_for(Finding("GG000", "", "error", str(file), 1, "", "", "", fix=fix))
    return "\n".join(apply(source.splitlines(), edits)) + "\n" if edits else None


def swapped(*pairs: tuple[str, str]) -> str:
    text = SOURCE
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


CLEARING = "    # clear first\n    opt.zero_grad()\n"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # A comment right above a statement moves along, the blank line above it stays.
        (Move(10, after=14), swapped((CLEARING, ""), ("    opt.step()\n", "    opt.step()\n" + CLEARING))),
        (
            Move(14, before=11),
            swapped(
                ("    # now step\n    opt.step()\n", ""),
                ("    opt.zero_grad()\n", "    opt.zero_grad()\n    # now step\n    opt.step()\n"),
            ),
        ),
        (Delete(10), swapped(("    opt.zero_grad()\n", ""))),
        (Delete(21), swapped(("@torch.no_grad()\n", ""))),
        (Insert("a = 1\nopt.step()", after=19), swapped(("n += 1\n", "n += 1\n    a = 1\n    opt.step()\n"))),
        (Insert("opt.step()", before=14), swapped(("    # now", "    opt.step()\n    # now"))),
        # What is repeated keeps its comments and its line breaks.
        (
            Replace(5, "f('a', x) + 1", "(f('a', x) + 1) / 4"),
            swapped(('        f("a"', '        (f("a"'), ("        + 1\n", "        + 1) / 4\n")),
        ),
        (Replace(24, "z.sum() / 4", "z.sum()"), swapped((" / 4  # end", "  # end"))),
        (Replace(15, "i % 4 == 0", "i % 4 == 3"), swapped(("== 0", "== 3"))),
    ],
    ids=lambda value: "to" if isinstance(value, str) else type(value).__name__,
)
def test_a_change_is_made_and_everything_else_stays_as_it_is(
    change: fixes.Change, expected: str, tmp_path: Path
) -> None:
    assert made(SOURCE, (change,), tmp_path) == expected


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (
            "loss.backward()\nif c: o.step()\n",
            Insert("o.zero_grad()", after=2),
        ),  # a body on the line of its if
        ("for x in y:\n    if c: o.step()\n    s.step()\n", Move(3, after=2)),
        ("a = 1; b = 2\nf()\n", Move(1, after=2)),  # two statements on one line
        ("for x in y:\n    f()\n", Delete(2)),  # nothing would be left of the block
        ("n = clip(p)\nprint(n)\no.step()\n", Move(1, before=3)),  # a value that is read on the way
        ("x = 1\nf(x)\nx = 2\n", Move(2, after=3)),  # another value by then
        ("f(a) + f(a)\n", Replace(1, "f(a)", "a")),  # which of the two?
        ("f(a)\n", Replace(1, "f(b)", "a")),
        ("f(a)\n", Replace(1, "f(a)", "(f(a)")),
        ("f(a)\n", Replace(1, "f(a)", "f(a)")),
        ("f(a)\n", Insert("g(unknown)", after=1)),
        ("f(a)\n", Delete(7)),
        ("f(a\n", Delete(1)),
        ("", Delete(1)),
    ],
    ids=lambda value: "in" if isinstance(value, str) else type(value).__name__,
)
def test_a_change_that_does_not_fit_is_not_made(source: str, change: fixes.Change, tmp_path: Path) -> None:
    assert made(source, (change,), tmp_path) is None


def test_parentheses_stay_where_they_are_needed(tmp_path: Path) -> None:
    source = "(loss / n).backward()\n"
    assert made(source, (Replace(1, "loss / n", "loss / 4"),), tmp_path) == "(loss / 4).backward()\n"
    assert made(source, (Replace(1, "loss / n", "loss"),), tmp_path) == "loss.backward()\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("t = T(a=1)\n", "t = T(a=1, c=2)\n"),
        ("t = T()\n", "t = T(c=2)\n"),
        ("t = T(\n    a=1,\n    b=2,\n)\n", "t = T(\n    a=1,\n    b=2,\n    c=2,\n)\n"),
        ("t = T(a=1,\n      b=2)\n", "t = T(a=1,\n      b=2,\n      c=2)\n"),
    ],
    ids=["one", "none", "lines", "aligned"],
)
def test_one_more_argument_is_laid_out_as_the_others_are(source: str, expected: str, tmp_path: Path) -> None:
    call = "T(" + ", ".join(name for name in ("a=1", "b=2") if name in source)
    new = f"{call}, c=2)" if call != "T(" else "T(c=2)"
    assert made(source, (Replace(1, call + ")", new),), tmp_path) == expected


def test_all_changes_of_a_fix_are_made_or_none(tmp_path: Path) -> None:
    source = "p = p - g\nq()\n"
    assert made(source, (Insert("p -= g", after=1), Delete(1)), tmp_path) == "p -= g\nq()\n"
    assert made(source, (Insert("p -= g", after=1), Delete(9)), tmp_path) is None


def test_a_statement_can_be_moved_to_the_very_beginning(tmp_path: Path) -> None:
    source = "for x in y:\n    o = SGD(w)\n    f(o)\n"
    assert made(source, (Move(2, before=1),), tmp_path) == "o = SGD(w)\nfor x in y:\n    f(o)\n"


def test_edits_of_several_findings_are_made_together() -> None:
    edits = [Edit(2, ("two",)), Edit(1, ("between",), instead=False), Edit(3)]
    assert apply(["1", "2", "3", "4"], edits) == ["1", "between", "two", "4"]


def test_a_fix_that_gives_no_advice_is_put_into_words() -> None:
    changes = (Move(3, after=4), Replace(1, "a", "b"), Insert("f()", before=2), Delete(5))
    assert " ".join(map(str, changes)) == (
        "Move line 3 after line 4. Replace `a` by `b` in line 1. Insert `f()` before line 2. Delete line 5."
    )
