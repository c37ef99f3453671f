"""GG101, GG102 and GG103: windows, their divisor, and what one item counts in them."""

from dataclasses import replace

import pytest

from tests.checker.rules._build import Story, mean, said, site, total

LOOP = """\
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 4
        loss.backward()
        if i % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
QUARTER = mean(8, ("div", 4), line=3)


def windows(*sizes: int, term=QUARTER, source: str = LOOP, rest: int = 0) -> Story:
    story = Story("fc.weight", source=source).optimizer()
    for size in sizes:
        for _ in range(size):
            story.backward(4, term)
        story.step(6).clear(7)
    for _ in range(rest):
        story.backward(4, term)
    return story


def test_a_step_after_the_first_micro_batch_points_at_the_condition() -> None:
    found = windows(1, 4, 4, rest=3).judged()
    assert said(found) == [
        "train.py:5: GG101 error: The first step uses 1 micro-batch, other steps use 4; 3 at the end are "
        "never used."
    ]


def test_micro_batches_that_are_cleared_unused_at_the_end_of_an_epoch_are_left_over() -> None:
    story = windows(4, 4, rest=2).clear(1)
    for _ in range(2):
        for _ in range(4):
            story.backward(4, QUARTER)
        story.step(6).clear(7)
    assert said(story.judged()) == [
        "train.py:5: GG101 error: No step uses the gradients of the 2 micro-batches left after the last "
        "window of 4."
    ]


def test_only_the_last_epochs_leftovers_are_never_used() -> None:
    assert said(windows(4, 4, 6, 4, 6, 4, rest=2).judged()) == [
        "train.py:5: GG101 error: A window holds 6 micro-batches, other windows 4: the leftovers of one epoch are "
        "added to the next epoch."
    ]


def test_windows_one_longer_than_their_divisor_are_off_by_one() -> None:
    assert said(windows(5, 5, 5, 5).judged()) == [
        "train.py:5: GG101 error: Windows hold 5 micro-batches but are divided by 4."
    ]


def test_whole_windows_and_a_shorter_last_one_with_its_own_divisor_are_right() -> None:
    story = windows(4, 4, 4)
    half = mean(8, ("div", 2), line=3)
    story.backward(4, half).backward(4, half).step(6).clear(7)
    assert story.judged() == []


def test_a_run_that_was_stopped_within_a_window_leaves_nothing_over() -> None:
    assert windows(4, 4, rest=2).judged(how="stopped") == []


def test_means_that_are_added_up_undivided() -> None:
    assert said(windows(4, 4, 4, term=mean(8)).judged()) == [
        "train.py:4: GG102 error: 4 micro-batches are added up without dividing their means: the gradient "
        "is 4 times the gradient of the whole batch."
    ]


def test_means_divided_by_another_number_point_at_the_division() -> None:
    found = windows(4, 4, 4, term=mean(8, ("div", 16), line=3)).judged()
    assert said(found) == [
        "train.py:3: GG102 error: 4 micro-batches are added up and each is divided by 16: the gradient is "
        "0.25 times the gradient of the whole batch."
    ]


@pytest.mark.parametrize("trainer", ["accelerate", "lightning", "transformers"])
def test_a_division_that_a_trainer_repeats_is_named_where_the_script_divides(trainer: str) -> None:
    loss = mean(8, ("div", 4), line=3)
    again = replace(loss, factors=(("div", 4.0, site(4)), *loss.factors))
    story = Story("w").optimizer()
    for _ in range(3):
        for _ in range(4):
            story.backward(4, again, trainer=trainer)
        story.step(6).clear(7)
    (found,) = story.judged()
    assert (found.code, found.line) == ("GG102", 3)
    assert "Don't divide here" in found.advice


def test_a_weight_of_one_half_and_a_division_by_two_are_no_double_division() -> None:
    half = mean(8, ("mul", 0.5), ("div", 2), line=3)
    assert windows(2, 2, 2, term=half).judged("GG102") == []
    twice = windows(2, 2, 2, term=mean(8, ("div", 2), ("div", 2), line=3)).judged("GG102")
    assert "divided by 2 and by 2" in twice[0].message


def test_a_sum_divided_by_its_own_batch_alone_is_a_mean_that_is_not_divided() -> None:
    found = windows(4, 4, 4, term=total(8, ("div", 8), line=3)).judged()
    assert [(one.code, one.line) for one in found] == [("GG102", 3)]


def test_the_running_sum_divided_at_every_micro_batch() -> None:
    story = Story("w", source=LOOP).optimizer()
    for _ in range(3):
        for _ in range(4):
            story.backward(4, mean(8)).write(5, factor=0.25)
        story.step(6).clear(7)
    found = story.judged()
    assert [(one.code, one.line) for one in found] == [("GG102", 5)]


def test_weights_of_a_loss_sums_and_gradients_divided_by_hand_are_right() -> None:
    assert windows(4, 4, term=mean(8, ("mul", 0.3), ("div", 4), line=3)).judged() == []
    assert windows(4, 4, term=total(8)).judged() == []
    assert windows(4, 4, term=total(8, ("div", 32), line=3)).judged() == []
    story = Story("w", source=LOOP).optimizer()
    for _ in range(3):
        for _ in range(4):
            story.backward(4, mean(8))
        story.write(5, factor=0.25).step(6).clear(7)
    assert story.judged() == []


def test_losses_of_other_tasks_in_one_window_are_added_on_purpose() -> None:
    story = Story("body", "a", "b", source=LOOP).optimizer()
    for _ in range(3):
        story.backward(4, mean(8), to="body a").backward(4, mean(8), to="body b").step(6).clear(7)
    assert story.judged() == []


def of_items(*counts: int, divide: bool = True) -> Story:
    story = Story("w", source=LOOP).optimizer()
    for _ in range(3):
        for count in counts:
            story.backward(
                4, mean(count, ("div", 4), line=3) if divide else mean(count, ("mul", count / sum(counts)))
            )
        story.step(6).clear(7)
    return story


def test_unequal_micro_batches_of_equal_weight() -> None:
    assert said(of_items(512, 512, 512, 37).judged()) == [
        "train.py:3: GG103 error: 4 micro-batches of 512, 512, 512, 37 items have equal weight: an item "
        "in the smallest weighs 13.8 times as much as an item in the largest."
    ]


def test_micro_batches_that_count_by_their_items_are_right() -> None:
    assert of_items(512, 512, 512, 37, divide=False).judged() == []
    assert of_items(64, 64, 64, 64).judged() == []


def test_sums_divided_by_their_own_masks_count_the_same_whatever_they_hold() -> None:
    story = Story("w", source=LOOP).optimizer()
    for _ in range(3):
        for count in (30, 57, 7, 44):
            story.backward(4, total(144, ("div", count), ("div", 4), line=3))
        story.step(6).clear(7)
    assert [(one.code, one.line) for one in story.judged()] == [("GG103", 3)]


def test_a_short_last_window_with_the_full_divisor() -> None:
    assert said(windows(4, 4, 2, 4, 4, 2).judged()) == [
        "train.py:3: GG103 error: The last window holds 2 micro-batches but is divided by 4: its gradient "
        "is 0.5 times the correct gradient."
    ]


def test_an_accumulator_that_divides_by_itself_is_not_judged_by_its_losses() -> None:
    for managed in (False, True):
        story = Story("fc.weight", source=LOOP).optimizer()
        for size in (1, 4, 4):
            for _ in range(size):
                story.backward(4, mean(8, line=3), managed=managed)
            story.step(6).clear(7)
        assert bool(story.judged("GG101", "GG102", "GG103")) is not managed


def test_class_weights_that_differ_are_a_note_without_an_edit() -> None:
    story = Story("w", source=LOOP).optimizer()
    for _ in range(4):
        for items in (9.0, 13.0):
            story.backward(4, mean(items, ("div", 2), line=3, weighted=True))
        story.step(6).clear(7)
    found = story.judged("GG103")
    assert said(found) == [
        "train.py:3: GG103 info: 2 micro-batches whose class weights add up to 9, 13 have equal weight: "
        "an item in the smallest weighs 1.44 times as much as an item in the largest."
    ]
