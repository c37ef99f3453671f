"""GG602: the mode in which steps are made."""

import pytest

from gradgate.events import ModeSet, NoGradEntered, NormsMoved
from tests.checker.rules._build import Story, said, site

MODEL = """\
class Net(nn.Module):
    def forward(self, x):
        return F.dropout(self.fc(x){given})
"""


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


BLOCK = """\
with torch.no_grad():
    for x, y in loader:
        correct += {compared}
optimizer.step()
"""


@pytest.mark.parametrize(
    ("compared", "root", "named"),
    [
        ("(net(x).argmax(1) == y).sum()", "model", "net"),
        ("(outputs_of(system, x) == y).sum()", "system", "system"),
        ("(first(x) == second(x)).sum()", "", "model"),
    ],
)
def test_the_advice_names_the_model_that_is_evaluated_in_training_mode(
    compared: str, root: str, named: str
) -> None:
    story = Story("norm.weight", source=BLOCK.format(compared=compared)).optimizer()
    story.facts["norm.weight"] = {"root": root}
    for _ in range(3):
        story.clear(4).backward(4).step(4).add(NormsMoved(site(1), story.ids(None), 2))
    (found,) = story.clear(4).backward(4).step(4).judged("GG602")
    assert found.advice == f"Call {named}.eval() before the evaluation, and {named}.train() after it."


def test_a_model_that_is_put_back_or_frozen_on_purpose_is_right() -> None:
    assert epochs(back=True).judged("GG602") == []
    assert epochs(back=False, of="norm.weight").judged("GG602") == []  # one layer
    assert epochs(back=False, evaluated=False).judged("GG602") == []
    story = Story("fc.weight").optimizer()
    story.add(mode(1, False, story), NoGradEntered(site(2)))
    for _ in range(3):
        story.clear(1).backward(2).step(3)
    assert story.judged("GG602") == []  # in evaluation mode from the start


def test_dropout_that_is_not_told_the_mode() -> None:
    def trained(given: str) -> Story:
        story = Story("fc.weight", source=MODEL.format(given=given)).optimizer()
        for _ in range(2):
            story.clear(4).backward(5).step(6).add(mode(7, False, story), mode(8, True, story))
        return story

    assert said(trained("").judged("GG602")) == [
        "train.py:3: GG602 warning: F.dropout ignores the mode and also drops units after eval()."
    ]
    assert trained(", training=self.training").judged("GG602") == []
