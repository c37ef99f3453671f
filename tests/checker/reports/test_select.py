from pathlib import Path

import pytest

from gradgate.checker.reports import report_on, selection

# private: which comments silence a finding, whatever rule made it
from gradgate.checker.reports._select import ignores_in
from gradgate.errors import OptionError
from tests.checker.reports.made import finding, log, script

WINDOW = finding("train.py")
CLEAR = finding("train.py", code="GG201", category="missing-zero-grad")


@pytest.mark.parametrize(
    ("select", "ignore", "taken"),
    [
        ("", "", [WINDOW, CLEAR]),
        ("GG1", "", [WINDOW]),
        ("gg201", "", [CLEAR]),
        ("accumulation-window,missing-zero-grad", "", [WINDOW, CLEAR]),
        (["GG", " GG1 "], ["GG101"], [CLEAR]),
        ("", "missing-zero-grad", [WINDOW]),
    ],
)
def test_findings_are_chosen_by_code_beginning_or_category(
    select: str | list[str], ignore: str | list[str], taken: list[object]
) -> None:
    chosen = selection(select=select, ignore=ignore)
    assert [each for each in (WINDOW, CLEAR) if chosen.takes(each)] == taken


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "acumulation-window",
            "watch: ignore: no rule has the code or category 'acumulation-window'. Did you mean "
            "'accumulation-window'? `gradgate rules` lists all rules.",
        ),
        (
            "XX",
            "watch: ignore: no rule has the code or category 'XX'. `gradgate rules` lists all rules.",
        ),
    ],
)
def test_a_name_that_no_rule_has_is_refused(name: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        selection(ignore=name)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("comment", "is_silenced"),
    [
        ("", False),
        ("# gradgate: ignore", True),
        ("#gradgate:ignore  # why", True),
        ("# gradgate: ignore[GG101]", True),
        ("# gradgate: ignore[GG201, accumulation-window]", True),
        ("# gradgate: ignore[gg1]", True),
        ("# gradgate: ignore[GG201]", False),
        ("# gradgate: ignore[]", False),
    ],
)
def test_a_comment_on_the_line_silences_what_it_names(
    tmp_path: Path, comment: str, is_silenced: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"\nstep()  {comment}\n", "utf-8")
    assert any(each.covers(finding(path, 2)) for each in ignores_in(str(path))) is is_silenced


@pytest.mark.parametrize(
    ("text", "line", "is_silenced"),
    [
        ("step(\n    rate,  # gradgate: ignore[GG101] the paper's rate\n)\n", 1, True),
        ("if late:  # gradgate: ignore\n    step()\n", 2, False),
        ("step()\nprint('# gradgate: ignore')\n", 2, False),
        ("%matplotlib inline\nstep()  # gradgate: ignore\n", 2, True),
    ],
)
def test_a_comment_counts_for_its_statement_and_only_as_a_comment(
    tmp_path: Path, text: str, line: int, is_silenced: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(text, "utf-8")
    assert any(each.covers(finding(path, line)) for each in ignores_in(str(path))) is is_silenced


def test_what_a_comment_silences_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(tmp_path)
    found = [finding(path, 6), finding(path, 10, code="GG401"), finding(path, 11)]
    # private: findings that no rule would make of a short log
    monkeypatch.setattr("gradgate.checker.reports._report.check", lambda log: found)
    # private: the files that a log of a script would name
    monkeypatch.setattr("gradgate.checker.reports._report._files", lambda logs: {str(path)})
    report = report_on([log()], script="train.py")
    assert [each.line for each in report.findings] == [6]
    assert report.summary.silenced == 2
    assert report.summary.unused == ()
    del found[1]
    report = report_on([log()], script="train.py")
    assert report.summary.unused == (f"{path}:10",)
    (fact,) = (text for label, text in report.facts() if label == "unused")
    assert fact == f"`# gradgate: ignore` at {path}:10: nothing was found there"
