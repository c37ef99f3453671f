"""``tools/new_rule.py``, and the rule that docs/writing_a_rule.md writes with it."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from corpus.scripts import MARK
from gradgate.checker.analysis import Run
from gradgate.checker.fixes import edits_for
from gradgate.checker.rules import Rule, rules

# private: the page's block of a file of texts is run with it
from gradgate.checker.rules._rule import Text
from gradgate.checker.rules.texts import stepping
from tests.test_scripts import run
from tools.new_rule import new_rule

PAGE = Path(__file__).parents[1] / "docs" / "writing_a_rule.md"
NAME = "clip-without-effect"
FILES = (
    "src/gradgate/checker/rules/stepping/_clip_without_effect.py",
    f"corpus/wrong/{NAME}/first.py",
    f"corpus/right/{NAME}/first.py",
)
TEXTS = "src/gradgate/checker/rules/texts/stepping.py"
MEASURES = f"corpus/right/{NAME}/measures.py"  # the page adds this one later


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["first.py"])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    new_rule(NAME, "GG306", tmp_path)
    return tmp_path


def rule_in(file: Path) -> Rule:
    spec = importlib.util.spec_from_file_location("new_rule", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RULE  # type: ignore[no-any-return]


def sections(doc: str) -> list[str]:
    return re.findall(r"^## (.*)", doc, flags=re.MULTILINE)


def test_a_new_rule_can_be_run_as_it_is_and_finds_nothing(checkout: Path) -> None:
    rule, wrong, right = (checkout / name for name in FILES)
    made = rule_in(rule)
    assert (made.code, made.name) == ("GG306", NAME)
    assert sections(made.doc) == sections(rules()[0].doc)
    [line] = [line for line in wrong.read_text("utf-8").splitlines() if MARK.search(line)]
    assert line == f"    optimizer.step()  # expect: {NAME}"
    for script in (wrong, right):
        outcome = run(script, watch=True)
        assert outcome.findings == []
        assert list(made.judge(Run(outcome.log))) == []  # type: ignore[arg-type]


def test_the_rule_of_the_page_finds_the_wrong_script_at_its_line_and_leaves_the_right_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```py\n# (\S+)\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert sorted(name for name, _ in blocks) == sorted([*FILES, TEXTS, MEASURES])
    for name, text in blocks:
        (checkout / name).write_text(text, encoding="utf-8")
    texts: dict[str, Text] = {}
    exec((checkout / TEXTS).read_text("utf-8"), {"Text": Text}, texts)
    for name, written in texts.items():
        monkeypatch.setattr(stepping, name, written, raising=False)
    rule, wrong, *rights = (checkout / name for name in (*FILES, MEASURES))
    judge = rule_in(rule).judge
    [finding] = judge(Run(run(wrong, watch=True).log))  # type: ignore[arg-type]
    assert (finding.file, finding.code) == (str(wrong), "GG306")
    assert MARK.search(wrong.read_text("utf-8").splitlines()[finding.line - 1])
    assert re.fullmatch(
        r"The limit is 1000; the largest of 20 gradient norms was \d(\.\d+)?\.", finding.message
    )
    [edit] = edits_for(finding)
    assert (edit.line, edit.lines, edit.instead) == (finding.line, (), True)  # the call is deleted
    for right in rights:
        assert list(judge(Run(run(right, watch=True).log))) == []  # type: ignore[arg-type]


def test_the_page_shows_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_rule(NAME, "GG306", tmp_path)
    assert f"$ python tools/new_rule.py {NAME} GG306\n{capsys.readouterr().out}```" in PAGE.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Clip", "GG306", "'Clip' is not a rule's name"),
        (NAME, "GG706", "'GG706' is not a code"),
        (NAME, "GG302", "GG302 is clip-misplaced already"),
        ("clip-misplaced", "GG306", "GG302 is clip-misplaced already"),
    ],
)
def test_a_rule_needs_a_new_name_and_a_free_code(checkout: Path, name: str, code: str, says: str) -> None:
    with pytest.raises(SystemExit) as end:
        new_rule(name, code, checkout)
    assert says in str(end.value)


def test_it_overwrites_nothing(checkout: Path) -> None:
    (checkout / FILES[0]).write_text("my work", encoding="utf-8")
    with pytest.raises(FileExistsError):
        new_rule(NAME, "GG307", checkout)
    assert (checkout / FILES[0]).read_text("utf-8") == "my work"
