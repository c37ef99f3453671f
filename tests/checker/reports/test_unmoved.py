"""A run without findings in which something did not move gets no certificate."""

from __future__ import annotations

import pytest

from gradgate.checker.reports import Report, report_on
from gradgate.events import Stepped
from tests.checker.rules._build import Story, mean, site


def stepping(moved: list[str], **facts: object) -> Report:
    """A run whose steps move these parameters."""
    story = Story("net.a", "net.b", "other.a")
    for name in story.names:
        story.facts[name] = {"still": not any(name in each.split() for each in moved), **facts}
    story.optimizer(kind="Adam")
    for names in moved:
        story.clear(1).backward(2, mean(8))
        story.add(Stepped(site(3), 0, story.ids(None), moved=story.ids(names), lr=(0.1,)))
    return report_on([story.log()])


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (["net.a net.b other.a"] * 12, []),
        (["net.a other.a"] * 12, ["None of 12 steps of optimizer moved net.b."]),
        ([""] * 12, ["None of 12 steps of optimizer moved net, other (3 tensors)."]),
        (["net.a net.b"] * 12, ["None of 12 steps of optimizer moved other.a."]),
        (
            ["net.a net.b other.a"] * 8 + ["net.a net.b"] * 4,
            ["other.a moved at first, and not in the last 4 steps of optimizer."],
        ),
        ([""] * 2, []),
    ],
    ids=["all", "one parameter", "nothing", "one network", "no longer", "too few steps"],
)
def test_what_no_step_moves_is_told_and_the_verdict_is_no_certificate(
    moved: list[str], said: list[str]
) -> None:
    report = stepping(moved)
    assert report.findings == ()
    assert [note for note in report.summary.notes if "moved" in note] == said
    verdict = "No mistakes found in what could be checked." if said else "No mistakes found."
    assert report.verdict()[0] == verdict


def test_a_module_that_is_frozen_during_the_run_is_named_as_a_whole() -> None:
    story = Story("net.body.a", "net.body.b", "net.head.a")
    for name in story.names:
        story.facts[name] = {"trainable": "head" in name}
    story.optimizer(kind="Adam")
    for moved in [" ".join(story.names)] * 8 + ["net.head.a"] * 4:
        story.clear(1).backward(2, mean(8))
        story.add(Stepped(site(3), 0, story.ids(None), moved=story.ids(moved), lr=(0.1,)))
    notes = report_on([story.log()]).summary.notes
    assert [note for note in notes if "moved" in note] == [
        "net.body moved at first, and not in the last 4 steps of optimizer."
    ]


def test_what_is_frozen_need_not_move() -> None:
    assert stepping(["net.a net.b"] * 12, trainable=False).verdict()[0] == "No mistakes found."
