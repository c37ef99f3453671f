"""GG106: gradients and ranks."""

from gradgate.checks import Finding, check
from gradgate.events import Ids, Reduced, Sharded
from tests.checks._build import Story, mean, said, site

LOOP = """\
for x, y in loader:
    loss = criterion(model(x), y)
    loss = loss / world_size
    loss.backward()
    optimizer.step()
"""


def judged(story: Story, *, distributed: bool = False) -> list[Finding]:
    found = check(story.log(world=2, distributed=distributed))
    return [finding for finding in found if finding.code == "GG106"]


def summed(ids: Ids, op: str = "sum") -> Reduced:
    return Reduced(site(6), f"all_reduce:{op}", ids, 2, 8)


def alone(*, synced: bool | None, exchanged: bool = False) -> Story:
    story = Story("fc.weight").optimizer().add(Sharded(site(1), 2))
    for _ in range(3):
        story.clear(2).backward(4, synced=synced)
        if exchanged:
            story.add(Reduced(site(6), "all_reduce:sum", frozenset(), 2, 1000))
        story.step(5)
    return story


def test_ranks_that_never_exchange_gradients() -> None:
    assert said(judged(alone(synced=None))) == [
        "train.py:4: GG106 warning: Each of 2 ranks makes its 3 steps by itself with gradients of its own "
        "data: none are exchanged."
    ]
    assert [one.severity for one in judged(alone(synced=False), distributed=True)] == ["warning"]


def test_ranks_that_exchange_in_some_way_are_right() -> None:
    assert judged(alone(synced=True), distributed=True) == []
    assert judged(alone(synced=None, exchanged=True)) == []  # a flat buffer
    assert judged(alone(synced=None), distributed=True) == []  # FSDP


def test_a_running_sum_that_is_summed_at_each_micro_batch() -> None:
    def windows(*, each: bool, mean_of_ranks: bool) -> Story:
        story = Story("fc.weight").optimizer()
        for _ in range(3):
            for micro in range(4):
                story.backward(4, mean(8))
                if each or micro == 3:
                    story.add(summed(story.ids(None)))
                    if mean_of_ranks:
                        story.write(7, factor=0.5)
            story.step(8).clear(9)
        return story

    assert said(judged(windows(each=True, mean_of_ranks=False))) == [
        "train.py:6: GG106 error: The running sum of gradients is summed over 2 ranks at each of 4 "
        "micro-batches, in 3 windows."
    ]
    assert judged(windows(each=True, mean_of_ranks=True)) == []  # a mean of equals is the same again
    assert judged(windows(each=False, mean_of_ranks=False)) == []


def test_a_loss_that_is_divided_by_the_ranks_and_averaged_over_them() -> None:
    def divided(line: int, *, synced: bool) -> Story:
        story = Story("fc.weight", source=LOOP).optimizer()
        for _ in range(3):
            story.clear(1).backward(4, mean(8, ("div", 2), line=line), synced=synced or None)
            if not synced:
                story.add(summed(story.ids(None)))
            story.step(5)
        return story

    assert said(judged(divided(3, synced=True), distributed=True)) == [
        "train.py:3: GG106 error: The loss is divided by 2 ranks, and its gradients are averaged over the "
        "ranks as well, in 3 steps."
    ]
    assert judged(divided(3, synced=False)) == []  # the sum over the ranks is divided once
    assert judged(divided(2, synced=True), distributed=True) == []  # divided by two of something else
