"""GG106, and GG103 across ranks: gradients and ranks."""

from dataclasses import replace

from gradgate.checker.rules import Finding, check, check_ranks
from gradgate.events import Ids, Log, Reduced, Sharded
from tests.checker.rules._build import Story, mean, said, site

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
    return Reduced(site(6), f"all_reduce:{op}", ids, 8)


def alone(*, synced: bool | None, exchanged: bool = False) -> Story:
    story = Story("fc.weight").optimizer().add(Sharded(site(1)))
    for _ in range(3):
        story.clear(2).backward(4, synced=synced)
        if exchanged:
            story.add(Reduced(site(6), "all_reduce:sum", frozenset(), 1000))
        story.step(5)
    return story


def test_ranks_that_never_exchange_gradients() -> None:
    assert said(judged(alone(synced=False), distributed=True)) == [
        "train.py:4: GG106 error: In 3 of 3 windows DDP doesn't synchronize the last micro-batch: each rank steps "
        "with the gradients of its own data."
    ]


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
        "train.py:6: GG106 error: The running sum of gradients is all-reduced over 2 ranks at each of 4 "
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
        "train.py:3: GG106 error: The loss is divided by 2, the number of ranks, and the gradients are averaged "
        "over the ranks as well, in 3 steps."
    ]
    assert judged(divided(3, synced=False)) == []  # the sum over the ranks is divided once


def test_windows_whose_last_micro_batch_is_not_synchronized() -> None:
    def windows(*synced: bool, exchanged: int = 0) -> Story:
        story = Story("fc.weight").optimizer()
        for _ in range(3):
            for each in synced:
                story.backward(4, mean(8, ("div", len(synced))), synced=each)
            story.add(Reduced(site(6), "all_reduce:sum", frozenset(), exchanged)).step(5).clear(6)
        return story

    assert said(judged(windows(True, False), distributed=True)) == [
        "train.py:4: GG106 error: In 3 of 3 windows DDP doesn't synchronize the last micro-batch: each rank steps "
        "with the gradients of its own data."
    ]
    assert judged(windows(False, True), distributed=True) == []
    assert judged(windows(True, False, exchanged=1000), distributed=True) == []  # weights, by hand
    assert judged(windows(True, False, exchanged=1), distributed=True) != []  # a number for the log


def test_parameters_that_are_left_out_of_the_exchange() -> None:
    def story(*, flat: int = 0) -> Story:
        story = Story("body.weight", "head.weight").optimizer()
        for _ in range(3):
            story.clear(2).backward(4, mean(8)).add(summed(story.ids("body.weight"), "avg"))
            story.add(Reduced(site(7), "all_reduce:sum", frozenset(), flat)).step(5)
        return story

    assert said(judged(story())) == [
        "train.py:6: GG106 warning: The gradients of head.weight are not averaged over the ranks in 3 "
        "steps, although other parameters' gradients are."
    ]
    assert judged(story(flat=1000)) == []  # it may hold them


def test_a_rank_that_never_steps_while_another_does() -> None:
    def of(rank: int, *, steps: bool) -> Log:
        story = Story("fc.weight").optimizer()
        for _ in range(3):
            story.backward(2, mean(8), synced=True)
            if steps:
                story.step(4)
        return replace(story.log(world=2, distributed=True), rank=rank)

    assert said(check_ranks([of(0, steps=True), of(1, steps=False)], strict=True)) == [
        "train.py:4: GG106 error: optimizer makes 0 steps on one rank and 3 on another, although DDP averages the "
        "gradients of the same 3 backward calls on all ranks."
    ]
    assert check_ranks([of(0, steps=False), of(1, steps=False)], strict=True) == []  # it was too short a run
    assert check_ranks([of(0, steps=True), of(1, steps=True)], strict=True) == []


def test_sums_over_ranks_that_nothing_divides() -> None:
    def story(*factors: tuple[str, float], by_hand: float = 1.0, kind: str = "SGD") -> Story:
        story = Story("fc.weight").optimizer(kind=kind)
        for _ in range(3):
            story.clear(2).backward(4, mean(8, *factors)).add(summed(story.ids(None)))
            if by_hand != 1:
                story.write(7, factor=by_hand)
            story.step(5)
        return story

    assert said(judged(story())) == [
        "train.py:6: GG106 info: The gradients of 2 ranks are summed and never divided, in 3 steps. "
        "Each rank's loss is a mean over its own items."
    ]
    assert judged(story(("div", 2))) == []
    assert judged(story(by_hand=0.5)) == []
    assert judged(story(kind="Adam")) == []  # the size of a gradient is all the same to it


def test_gradients_that_are_divided_by_the_ranks_and_averaged_by_ddp() -> None:
    def divided(factor: float) -> Story:
        story = Story("fc.weight").optimizer()
        for _ in range(3):
            story.clear(9).backward(4, mean(8), synced=True).write(2, factor=factor).step(5)
        return story

    assert said(judged(divided(0.5), distributed=True)) == [
        "train.py:2: GG106 error: The gradient is divided by 2, the number of ranks, and the gradients are "
        "averaged over the ranks as well, in 3 steps."
    ]
    assert judged(divided(0.25), distributed=True) == []  # by four of something else


def test_one_division_too_many_is_told_once() -> None:
    story = Story("fc.weight", source="loss = loss / (3 * world_size)\n").optimizer()
    for _ in range(3):
        for micro in range(3):
            story.backward(4, mean(8, ("div", 6)), synced=micro == 2)
        story.step(5).clear(6)
    assert [one.code for one in check(story.log(world=2, distributed=True))] == ["GG106"]


def test_means_over_unequal_numbers_of_items_that_ranks_combine() -> None:
    def found(how: str, *, weights: bool = False, by_hand: float = 1.0) -> list[Finding]:
        """Two ranks have 8 and 24 items. With ``weights``, each mean is weighted by its share of all items."""

        def of(rank: int) -> Log:
            items = (8, 24)[rank]
            story = Story("fc.weight").optimizer()
            for _ in range(4):
                factor = ("mul", items / 32) if weights else ("div", 2)
                loss = mean(items, factor) if how == "sum" else mean(items)
                story.clear(2).backward(4, loss, synced=how == "ddp" or None)
                if by_hand != 1:
                    story.write(5, factor=by_hand)
                if how != "ddp":
                    story.add(summed(story.ids(None), how))
                story.step(7)
            return replace(story.log(world=2, distributed=how == "ddp"), rank=rank)

        logs = [of(0), of(1)]
        return [finding for finding in check_ranks(logs, strict=True) if finding.code == "GG103"]

    text = (
        "train.py:1: GG103 error: Each rank's loss is a mean over its own items (8, 24), but the gradients are {} "
        "as if the counts were equal: an item on the rank with the fewest weighs 3 times as much as an item on the "
        "rank with the most."
    )
    assert said(found("ddp")) == said(found("avg")) == [text.format("averaged")]
    assert said(found("sum")) == [text.format("added")]
    assert said(found("sum", by_hand=0.5)) == [text.format("averaged")]
    (added,), (averaged,) = found("sum"), found("ddp")
    assert "loss.sum() * world_size / items_of_all_ranks" in averaged.advice
    assert "loss.sum() / items_of_all_ranks" in added.advice
    assert found("sum", weights=True) == []
    assert found("max") == []
