"""GG104 and GG105: what a loss is averaged over, and terms that count twice."""

from gradgate.events import Frame
from tests.checker.rules._build import FILE, Story, mean, said, total

SOURCE = "loss = criterion(model(x), y) / x.size(0)\nloss = criterion(model(x), y) / 4\n"


def run(*terms, times: int = 4, source: str = SOURCE, of: str = "w", **group) -> Story:
    story = Story("w", source=source).optimizer(of=of, **group)
    for _ in range(times):
        story.clear(5).backward(6, *terms).step(7)
    return story


def test_a_mean_divided_by_the_batch_size_once_more() -> None:
    assert said(run(mean(32, ("div", 32), line=1)).judged()) == [
        "train.py:1: GG104 error: A mean over 32 items is divided once more by the batch size, 32."
    ]


def test_a_number_that_happens_to_be_the_batch_size_is_a_weight() -> None:
    assert run(mean(4, ("div", 4), line=2)).judged() == []
    assert run(mean(32, ("div", 3), line=1)).judged() == []


def test_scales_of_different_size_are_averaged_on_purpose() -> None:
    scales = [mean(n * n, ("div", 2), line=1, key=n, sizes=(1, n, n)) for n in (8, 4)]
    assert run(*scales).judged() == []


def test_a_mean_over_padding() -> None:
    story = Story("w").optimizer()
    for share in (0.5, 0.8, 0.6):
        story.clear(5).backward(6, mean(40, line=1, masked=share)).step(7)
    assert said(story.judged()) == [
        "train.py:1: GG104 error: A mean is taken over all 40 positions although a mask, or ignored "
        "targets, keep only 50 to 80% of them."
    ]


def test_a_mean_over_samples_and_classes() -> None:
    assert [one.code for one in run(mean(80, line=1, classes=10)).judged()] == ["GG104"]


def test_a_term_that_is_added_along_two_ways() -> None:
    joined = (Frame(FILE, 2, "f"),)
    assert said(run(mean(8, line=1, paths=2, joined=joined)).judged()) == [
        "train.py:2: GG105 error: The loss adds the same term (line 1) 2 times."
    ]


def test_a_loss_that_is_back_propagated_alone_and_within_the_total() -> None:
    story = Story("w").optimizer()
    for n in range(4):
        aux, main = mean(8, key=2 * n), mean(8, key=2 * n + 1)
        story.clear(1).backward(2, aux, retain=True).backward(3, main, aux).step(4)
    (found,) = story.judged("GG105")
    assert (found.line, found.count) == (2, 4)


def test_two_losses_back_propagated_one_after_the_other_are_right() -> None:
    story = Story("w").optimizer()
    for n in range(4):
        story.clear(1).backward(2, mean(8, key=2 * n), retain=True).backward(3, mean(8, key=2 * n + 1)).step(
            4
        )
    assert story.judged("GG105") == []


def test_a_penalty_beside_weight_decay() -> None:
    penalty = total(8, ("mul", 0.01), line=3, squares=frozenset({0}))
    assert said(run(mean(8), penalty, weight_decay=0.01).judged()) == [
        "train.py:1: GG105 warning: 1 parameters have an L2 penalty in the loss (line 3), and optimizer "
        "also applies a weight decay of 0.01 to them."
    ]
    assert run(mean(8), penalty).judged() == []
