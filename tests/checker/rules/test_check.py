"""Judging as a whole: rules are found, a failing one costs only its own findings, logs survive being saved."""

import pickle
import re
import sys

import pytest

# private: a symptom is folded into its cause; a rule that fails is put among the others
from gradgate.checker.rules import ENOUGH, Finding, Rule, _check, check, rules
from gradgate.checker.rules._check import fold
from gradgate.events import NonfiniteMade
from tests.checker.rules._build import Story, mean, site

SECTIONS = ("What it does", "Why is this bad?", "Example", "Use instead", "Known limits", "Sources")


def repeating() -> Story:
    story = Story("w").optimizer()
    for _ in range(4):
        story.backward(4, mean(8)).step(5)
    return story


def fails(run: object) -> None:
    raise ZeroDivisionError("no windows")


def test_a_rule_that_fails_becomes_a_note_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Rule("GG999", "broken", "error", "Fails.", fails)  # type: ignore[arg-type]
    monkeypatch.setattr(_check, "rules", lambda: (broken, *rules()))
    found = check(repeating().log())
    assert [one.code for one in found] == ["GG000", "GG201"]
    assert found[0].message == "Rule GG999 (broken) failed on this run: ZeroDivisionError: no windows"
    assert found[0].severity == "info"
    with pytest.raises(ZeroDivisionError):
        check(repeating().log(), strict=True)


@pytest.mark.parametrize("operation", ["Acos", "Log", "Sqrt", "Where"])
def test_advice_on_an_operation_names_numbers_not_their_placeholders(operation: str) -> None:
    story = Story("w").optimizer()
    for _ in range(3):
        story.backward(4, mean(8))
        story.add(NonfiniteMade(site(4), f"{operation}Backward0", story.ids(None)))
        story.step(5, nonfinite=story.ids(None))
    (found,) = [one for one in check(story.log()) if one.code == "GG404"]
    assert re.search(r"clamp\((min=|-1)", found.advice)
    assert "{" not in found.advice


def test_a_saved_log_gets_the_same_findings() -> None:
    log = repeating().log()
    saved = pickle.loads(pickle.dumps(log))
    assert saved == log
    assert check(saved) == check(log)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_every_rule_explains_itself(rule: Rule) -> None:
    headings = [line.removeprefix("## ") for line in rule.doc.splitlines() if line.startswith("## ")]
    assert headings == list(SECTIONS)
    assert rule.summary.endswith(".")


def test_no_rule_needs_more_steps_than_a_report_says() -> None:
    assert rules()
    needed = [
        number
        for name, module in sys.modules.items()
        if name.startswith("gradgate.checker.rules.")
        for variable, number in vars(module).items()
        if re.match("_(LEAST|CALLS|STEPS|LOOKS|GROWS|TIMES)", variable) and isinstance(number, int)
    ]
    assert max(needed) == ENOUGH


def test_codes_and_categories_are_used_once() -> None:
    assert len({rule.code for rule in rules()}) == len(rules())
    assert len({rule.name for rule in rules()}) == len(rules())


def finding(category: str, line: int, about: set[int]) -> Finding:
    return Finding("GG000", category, "error", "train.py", line, "", "", "", about=frozenset(about))


def test_a_symptom_is_folded_into_its_cause_and_stays_where_it_is_about_others() -> None:
    cause = finding("zero-grad-misplaced", 10, {1, 2})
    symptom, other = finding("zero-gradient", 8, {2}), finding("zero-gradient", 20, {3})
    assert fold([symptom, cause, other]) == [cause, other]
    assert fold([symptom, other]) == [symptom, other]
