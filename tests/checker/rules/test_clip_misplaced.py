"""GG302: clipping that no step has anything of."""

from gradgate.events import Clipped
from tests.checker.rules._build import Story, mean, said, site


def test_clipping_after_the_step_is_too_late() -> None:
    story = Story("fc.weight").optimizer()
    for _ in range(3):
        story.clear(1).backward(2).step(3).clip(4)
    assert said(story.judged("GG302")) == [
        "train.py:4: GG302 error: Gradients are clipped after the step that used them; 3 steps of "
        "optimizer use unclipped gradients."
    ]


def test_an_iterator_that_is_used_up_gives_nothing_to_clip() -> None:
    story = Story("fc.weight").optimizer()
    for _ in range(3):
        story.clear(1).backward(2).add(Clipped(site(3), frozenset(), frozenset(), 0, None, 1.0)).step(4)
    assert said(story.judged("GG302")) == [
        "train.py:3: GG302 error: clip_grad gets no parameters in 3 of 3 calls; 3 steps of optimizer use "
        "unclipped gradients."
    ]


def test_clipping_another_network_or_before_the_backward_does_nothing() -> None:
    story = Story("policy.weight", "target.weight").optimizer(of="policy.weight")
    for _ in range(3):
        story.clear(1).backward(2, to="policy.weight").clip(3, "target.weight").step(4)
    assert [(one.line, one.severity) for one in story.judged("GG302")] == [(3, "error")]
    early = Story("fc.weight").optimizer()
    for _ in range(3):
        early.clear(1).clip(2).backward(3).step(4)
    assert [one.line for one in early.judged("GG302")] == [2]


def windows(*, each: bool, norm: float = 2.0) -> Story:
    story = Story("fc.weight").optimizer()
    for _ in range(3):
        for micro in range(4):
            story.backward(2, mean(8, ("div", 4)))
            if each or micro == 3:
                story.clip(3, norm=norm)
        story.step(4).clear(5)
    return story


def test_clipping_each_micro_batch_shrinks_the_early_ones_again() -> None:
    assert said(windows(each=True).judged("GG302")) == [
        "train.py:3: GG302 error: Gradients are clipped before the last of 4 micro-batches "
        "is added, 3 times in each window."
    ]
    assert [one.severity for one in windows(each=True, norm=0.5).judged("GG302")] == ["warning"]


def test_clipping_in_its_place_is_silent() -> None:
    assert windows(each=False).judged("GG302") == []
    by_hand = Story("fc.weight")  # no optimizer: p.data.add_(p.grad, alpha=-lr)
    measuring = Story("fc.weight").optimizer()
    for _ in range(3):
        by_hand.clear(1).backward(2).clip(3).write(4, target="value", op="add_")
        measuring.clear(1).backward(2).step(3).clip(4, limit=float("inf"))
    assert by_hand.judged("GG302") == []
    assert measuring.judged("GG302") == []
