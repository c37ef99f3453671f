"""GG201, GG202 and GG203: what was used before, what is lost, and what belongs to another loss."""

from gradgate.events import Backward, Opposed
from tests.checker.rules._build import Story, mean, said, site

LOOP = """\
for x, y in loader:
    optimizer.zero_grad
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""


def test_nothing_is_ever_cleared() -> None:
    story = Story("w", "b").optimizer()
    for _ in range(4):
        story.backward(4, mean(8)).step(5)
    assert said(story.judged()) == [
        "train.py:5: GG201 error: 3 of 4 steps of optimizer use gradients of w and b that earlier steps "
        "already used: one step uses those of up to 4 backward calls."
    ]


def test_a_zero_grad_that_is_named_and_not_called_is_the_line() -> None:
    story = Story("w", source=LOOP).optimizer()
    for _ in range(4):
        story.backward(4, mean(8)).step(5)
    assert [(one.code, one.line) for one in story.judged()] == [("GG201", 2)]


def test_clearing_something_else_is_the_line() -> None:
    story = Story("body.w", "head.w").optimizer()
    for _ in range(4):
        story.clear(2, "head.w").backward(4, mean(8)).step(5)
    (found,) = story.judged()
    assert (found.code, found.line) == ("GG201", 2)
    assert "body.w" in found.message
    assert "head.w" not in found.message


def test_decay_in_place_of_clearing_is_right() -> None:
    story = Story("w").optimizer()
    for _ in range(4):
        story.backward(4, mean(8)).step(5).write(6, factor=0.5)
    assert story.judged() == []


def test_clearing_anywhere_between_two_steps_but_after_backward_is_right() -> None:
    for before in (True, False):
        story = Story("w").optimizer()
        for _ in range(4):
            if before:
                story.clear(1)
            story.backward(4, mean(8)).step(5)
            if not before:
                story.clear(6)
        assert story.judged() == []


def test_clearing_between_backward_and_step_loses_everything() -> None:
    story = Story("w").optimizer()
    for _ in range(4):
        story.backward(4, mean(8)).clear(5).step(6, used="")
    assert said(story.judged("GG202")) == [
        "train.py:5: GG202 error: The gradients of 4 of 4 backward calls are cleared before any step uses them."
    ]


def test_what_a_generators_loss_leaves_in_the_discriminator_may_be_cleared() -> None:
    story = Story("d", "g").optimizer("opt_d", "d").optimizer("opt_g", "g")
    for _ in range(4):
        story.clear(1, "d").backward(2, mean(8), to="d").step(3, "opt_d")
        story.clear(4, "g").backward(5, mean(8)).step(6, "opt_g")
    assert [one.severity for one in story.judged()] == ["info"]  # they are a waste


def test_a_backward_for_the_inputs_gradient_and_gradients_put_together_by_hand_may_be_cleared() -> None:
    attack = Story("w").optimizer()
    surgery = Story("w").optimizer()
    for _ in range(4):
        attack.backward(2, mean(8), others=1).clear(3).backward(4, mean(8)).step(5).clear(6)
        surgery.backward(2, mean(8)).clear(3).backward(4, mean(8)).clear(5).write(6, op="assigned").step(
            7
        ).clear(8)
    assert attack.judged() == []
    assert surgery.judged() == []


def gan(clear_d_at: str) -> Story:
    story = Story("d", "g").optimizer("opt_d", "d").optimizer("opt_g", "g")
    for _ in range(4):
        if clear_d_at == "start":
            story.clear(1, "d")
        story.backward(2, mean(8), to="d").step(3, "opt_d")
        if clear_d_at == "after":
            story.clear(4, "d")
        story.clear(5, "g").backward(6, mean(8), uses=((1, site(6)), (0, site(6)))).step(7, "opt_g")
    return story


def adversarial(story: Story) -> Story:
    """Each discriminator loss pulls against what the generator's has left."""
    seen = 0
    for event in list(story.events):
        seen += 1
        if isinstance(event, Backward) and event.site == site(2):
            story.events.insert(seen, Opposed(site(2), ((0, -0.4),)))
            seen += 1
    return story


def test_a_generators_loss_that_ends_in_the_discriminators_step() -> None:
    for story in (gan("after"), adversarial(gan("after"))):
        assert said(story.judged()) == [
            "train.py:4: GG203 error: In 3 of 4 steps of opt_d, the gradients of d include the loss of "
            "line 6, in addition to the loss of line 2."
        ]
    assert gan("start").judged("GG201", "GG202", "GG203") == []


def test_a_second_loss_that_follows_one_optimizers_step_may_be_meant() -> None:
    story = Story("encoder", "generator").optimizer("opt_e", "encoder").optimizer("opt_g", "generator")
    for _ in range(4):
        story.clear(1).backward(2, mean(8)).step(3, "opt_e").backward(4, mean(8), to="generator").step(
            5, "opt_g"
        )
    assert [one.severity for one in story.judged()] == ["info"]


def test_two_losses_that_pull_against_each_other_before_both_steps() -> None:
    def story(cosine: float) -> Story:
        made = Story("d", "g").optimizer("opt_d", "d").optimizer("opt_g", "g")
        for _ in range(4):
            order = ((1, site(2)), (0, site(2)))
            made.clear(1).backward(2, mean(8), uses=order).backward(3, mean(8), to="g")
            made.add(Opposed(site(3), ((1, cosine),))).step(4, "opt_d").step(5, "opt_g")
        return made

    assert [(one.code, one.line) for one in story(-0.95).judged()] == [("GG203", 2)]
    assert story(-0.2).judged() == []


def test_one_loss_for_two_optimizers_at_different_rates_is_right() -> None:
    story = Story("a", "b").optimizer("fast", "a").optimizer("slow", "b")
    for _ in range(4):
        story.backward(2, mean(8)).step(3, "fast").clear(4, "a")
        story.backward(2, mean(8)).step(3, "fast").clear(4, "a").step(5, "slow").clear(6, "b")
    assert story.judged("GG203", "GG201", "GG202") == []


def both_step_last(*, driven: bool, own: bool = True) -> Story:
    """The loss of line 3 reaches `g` through `d`, after the loss of line 2; both optimizers step then."""
    story = Story("d", "g").optimizer("opt_d", "d").optimizer("opt_g", "g")
    facts = {"beyond": story.ids("d"), "driven": story.ids("d") if driven else frozenset()}
    for _ in range(4):
        story.clear(1).backward(2, mean(8), to="d" if own else None).backward(3, mean(8), **facts)
        story.step(4, "opt_d").step(5, "opt_g")
    return story


def test_a_discriminator_steps_before_the_loss_that_passes_through_it() -> None:
    assert said(both_step_last(driven=True).judged()) == [
        "train.py:4: GG203 warning: In 4 of 4 steps of opt_d, the gradients of d include the loss of line 3, in "
        "addition to the loss of line 2."
    ]


def test_two_losses_that_both_say_what_to_decode_may_be_added() -> None:
    assert both_step_last(driven=False).judged() == []


def test_without_a_loss_of_its_own_a_network_is_trained_by_those_that_pass_through_it() -> None:
    assert both_step_last(driven=True, own=False).judged() == []
