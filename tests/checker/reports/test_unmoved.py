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
        (
            ["net.a other.a"] * 12,
            ["None of 12 steps of optimizer moved net.b. Check whether a loss uses it."],
        ),
        (
            [""] * 12,
            ["None of 12 steps of optimizer moved net, other (3 tensors). Check whether a loss uses it."],
        ),
        (
            ["net.a net.b"] * 12,
            ["None of 12 steps of optimizer moved other.a. Check whether a loss uses it."],
        ),
        (
            ["net.a net.b other.a"] * 8 + ["net.a net.b"] * 4,
            [
                "other.a moved at first, but not in the last 4 steps of optimizer. Check whether this is intended."
            ],
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
    unless = "this run is too short: some rules need 8 steps" if len(moved) < 8 else ""
    unless = "not everything could be checked" if said else unless
    assert report.verdict()[0] == f"No mistakes found{unless and f', but {unless}'}."


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
        "net.body moved at first, but not in the last 4 steps of optimizer. Check whether this is intended."
    ]
