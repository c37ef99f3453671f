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


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        ("net.head.a", []),
        (
            None,
            [
                "None of 12 steps of optimizer moved net.body, which was frozen after a loss had reached it. "
                "Check whether the right network is frozen."
            ],
        ),
    ],
    ids=["before", "between the forward and the backward pass"],
)
def test_what_is_frozen_before_a_loss_reaches_it_need_not_move(reached: str | None, said: list[str]) -> None:
    story = Story("net.body.a", "net.body.b", "net.head.a")
    for name in story.names:
        story.facts[name] = {"trainable": "head" in name}
    story.optimizer(kind="Adam")
    for step in range(12):
        story.clear(1).backward(2, mean(8), to="net.head.a" if step else reached)
        story.add(Stepped(site(3), 0, story.ids("net.head.a"), moved=story.ids("net.head.a"), lr=(0.1,)))
    assert [note for note in report_on([story.log()]).summary.notes if "moved" in note] == said


@pytest.mark.parametrize("zero", [True, False])
def test_an_optimizer_that_gets_only_zero_gradients_is_reported_though_another_one_moves_the_weights(
    zero: bool,
) -> None:
    story = Story("net.a", "net.b")
    for name in story.names:
        story.facts[name] = {"still": False}
    story.optimizer("inner").optimizer("outer")
    every = story.ids(None)
    for _ in range(6):
        story.clear(1).backward(2, mean(8))
        story.add(Stepped(site(3), 0, every, moved=every, lr=(0.1,)))
        story.add(Stepped(site(4), 1, every, zero=every if zero else frozenset(), lr=(0.1,)))
    report = report_on([story.log()])
    assert [
        "None of 6 steps of outer moved net (2 tensors): every gradient was zero. Check how the "
        "loss depends on it."
    ] * zero == [note for note in report.summary.notes if "moved" in note]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "b.0 b.1 b.2 b.3",
            ["optimizer updates b (4 tensors), and other code overwrites it after each step."],
        ),
        ("b.0 b.2", []),
        ("a.0 a.1 a.2 a.3 b.0 b.1 b.2 b.3", []),
    ],
    ids=["an average of the other network", "some weights", "both networks"],
)
def test_a_network_that_is_stepped_and_overwritten_is_named_beside_its_source(
    written: str, said: list[str]
) -> None:
    story = Story(*(f"{network}.{number}" for network in "ab" for number in range(4)))
    for name in story.names:
        story.facts[name] = {"shape": (4, int(name[-1]) + 1), "still": False}
    story.optimizer(kind="Adam")
    every = story.ids(None)
    for step in range(12):
        story.clear(1).backward(2, mean(8))
        changed = story.ids(written) if step else frozenset()
        story.add(Stepped(site(3), 0, every, moved=every, changed=changed, lr=(0.1,)))
    notes = [note for note in report_on([story.log()]).summary.notes if "overwrites it" in note]
    advice = " If it is an average of a (4 tensors), remove it from optimizer and run it under no_grad."
    assert notes == [sentence + advice for sentence in said]
