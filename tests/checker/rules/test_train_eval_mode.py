"""GG602: the mode in which steps are made."""

import pytest

from gradgate.events import ModeSet, NoGradEntered
from tests.checker.rules._build import Story, said, site


def mode(line: int, training: bool, story: Story, of: str | None = None) -> ModeSet:
    return ModeSet(site(line), training, story.ids(of), True)


def epochs(*, back: bool, evaluated: bool = True, of: str | None = None, source: str = "") -> Story:
    story = Story("fc.weight", "fc.bias", "norm.weight", source=source).optimizer()
    for _ in range(3):
        for _ in range(4):
            story.clear(1).backward(2).step(3)
        story.add(mode(4, False, story, of))
        if evaluated:
            story.add(NoGradEntered(site(5)))
        if back:
            story.add(mode(6, True, story))
    return story


def test_training_goes_on_in_evaluation_mode_after_the_first_validation() -> None:
    assert said(epochs(back=False).judged("GG602")) == [
        "train.py:4: GG602 warning: 8 of 12 steps are made in evaluation mode: eval() is called here, and "
        "nothing calls train() before the next step."
    ]


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("", "Call model.train() "),
        ("net.eval()", "Call net.train() "),
        ("net = net.train(False)", "Call net.train() "),
        ("self.image.eval().requires_grad_(False)", "Call self.image.train() "),
    ],
)
def test_the_advice_names_the_model_that_the_line_puts_in_evaluation_mode(line: str, call: str) -> None:
    (found,) = epochs(back=False, source=f"\n\n\n{line}\n").judged("GG602")
    assert found.advice.startswith(call)


def test_a_model_that_is_put_back_or_frozen_on_purpose_is_right() -> None:
    assert epochs(back=True).judged("GG602") == []
    assert epochs(back=False, of="norm.weight").judged("GG602") == []  # one layer
    assert epochs(back=False, evaluated=False).judged("GG602") == []
    story = Story("fc.weight").optimizer()
    story.add(mode(1, False, story), NoGradEntered(site(2)))
    for _ in range(3):
        story.clear(1).backward(2).step(3)
    assert [one.severity for one in story.judged("GG602")] == ["info"]  # in evaluation mode from the start
