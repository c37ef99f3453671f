"""GG501 to GG505: which optimizer holds which parameters, what it keeps of them, and what it moves."""

from __future__ import annotations

from typing import Any

import pytest

from gradgate.events import Frame, Group, ModeSet, OptimizerMade, Site, StateLoaded, StatisticsMoved, Stepped
from tests.checker.rules._build import Story, mean, said, site


def trained(story: Story, times: int = 4, *, to: str | None = None, used: str | None = None) -> Story:
    for _ in range(times):
        story.clear(1).backward(8, mean(8), to=to).step(9, used=used)
    return story


def at(line: int, *outer: int) -> Site:
    return tuple(Frame("train.py", number, f"f{number}") for number in (line, *outer))


# GG501


def test_a_decoder_that_was_not_handed_over() -> None:
    story = Story("encoder.w", "decoder.w").optimizer(of="encoder.w", line=3)
    story.facts["decoder.w"]["still"] = True
    for _ in range(4):
        story.clear(1, "encoder.w").backward(8, mean(8), beyond=story.ids("decoder.w")).step(9)
    assert said(story.judged()) == [
        "train.py:3: GG501 error: No step changed decoder.w (in no optimizer's list), although 4 backward "
        "calls computed gradients for it."
    ]


def test_layers_in_a_plain_list_are_found_where_they_are_made() -> None:
    story = Story("model.out.w", "a", "b").optimizer(of="model.out.w")
    for name in ("a", "b"):
        story.facts[name] |= {"still": True, "root": f"model.layers[{name}]", "made": at(15)}
    story.facts["model.out.w"]["root"] = "model"
    (found,) = trained(story).judged()
    assert (found.code, found.line) == ("GG501", 15)
    assert "plain list" in found.message


def test_what_moves_by_itself_is_right() -> None:
    story = Story("q.w", "average.w").optimizer(of="q.w")
    story.facts["average.w"]["still"] = False
    assert trained(story).judged("GG501") == []


def test_a_large_network_in_evaluation_mode_is_not_forgotten() -> None:
    story = Story("head.w", "vgg.w").optimizer(of="head.w")
    story.facts["vgg.w"]["still"] = True
    story.add(ModeSet(site(2), False, story.ids("vgg.w"), depends=True))
    assert trained(story).judged("GG501") == []


# GG502


def test_what_is_left_out_of_one_list_is_told_together() -> None:
    story = Story("body.w", "head.w", "scale").optimizer(of="body.w", line=2)
    story.facts["head.w"] |= {"still": True, "nbytes": 2}
    story.facts["scale"] |= {"still": True, "nbytes": 2, "registered": False, "made": at(1), "root": "scale"}
    assert said(trained(story, to="body.w head.w scale", used="body.w").judged("GG501")) == [
        "train.py:2: GG501 error: No step changed head.w and scale (in no optimizer's list), although 4 "
        "backward calls computed gradients for them."
    ]


def replaced(**new: Any) -> Story:
    story = Story("old.w", "body.w", "fc.w").optimizer(of="old.w body.w", line=2)
    story.facts["old.w"] |= {"registered": False, "made": at(30, 1)}
    story.facts["fc.w"] |= {"still": True, "made": at(4), "made_at": 5, **new}
    return trained(story, to="body.w fc.w", used="body.w")


def test_a_head_that_was_made_after_the_optimizer() -> None:
    assert said(replaced().judged()) == [
        "train.py:4: GG502 error: fc.w was made after optimizer, which still holds 1 parameter that "
        "losses no longer reach. 4 of its steps left the new parameter unchanged."
    ]


def test_a_model_that_is_built_again_is_found_where_that_is_asked_for() -> None:
    story = replaced(made=at(30, 7))
    assert [(one.code, one.line) for one in story.judged()] == [("GG502", 7)]


def test_a_head_that_is_trained_by_hand_or_has_an_optimizer_of_its_own_is_right() -> None:
    assert replaced(still=False).judged("GG502") == []
    story = replaced()
    story.add(OptimizerMade(site(3), 1, "SGD", (Group(story.ids("fc.w"), 0.1),)))
    assert story.judged("GG502") == []


# GG503


def test_both_step_a_trunk_with_one_gradient() -> None:
    story = (
        Story("trunk", "pi", "v")
        .optimizer("pi_opt", "trunk pi", line=3)
        .optimizer("v_opt", "trunk v", line=4)
    )
    for _ in range(4):
        story.clear(1).backward(8, mean(8)).step(9, "pi_opt").step(10, "v_opt")
    assert said(story.judged()) == [
        "train.py:4: GG503 error: pi_opt and v_opt both update trunk with the same gradient, 4 times."
    ]


def test_a_parameter_that_is_listed_twice() -> None:
    story = Story("embed").add(
        OptimizerMade(site(3), 0, "SGD", (Group(frozenset({0}), 0.1),), twice=frozenset({0}))
    )
    story.optimizers[0] = "optimizer"
    assert said(trained(story).judged()) == [
        "train.py:3: GG503 error: optimizer lists embed twice, so each step updates it twice."
    ]


def test_a_loss_of_its_own_for_each_optimizer_is_right() -> None:
    story = Story("G", "D").optimizer("opt_d", "D").optimizer("opt_info", "G D")
    for _ in range(4):
        story.clear(1).backward(2, mean(8), to="D").step(3, "opt_d")
        story.clear(4).backward(5, mean(8)).step(6, "opt_info")
    assert story.judged() == []


# GG504

EPOCHS = "for epoch in range(3):\n    optimizer = Adam(model.parameters())\n"
NUMBERED = EPOCHS.replace("epoch", "number")
PASSES_BELOW = (
    "    for _ in range(2):\n        for x in data:\n" + " " * 12 + "\n" * 3 + " " * 12 + "optimizer.step()\n"
)
STEPS_BELOW = "    for x in data:\n        \n        \n        \n        \n        optimizer.step()\n"


def made_again(source: str, *, restored: bool = False, kind: str = "Adam") -> Story:
    story = Story("w", source=source)
    for _ in range(3):
        if restored:
            story.write(5, target="value", op="copy_")
        name = f"optimizer{len(story.optimizers)}"
        story.optimizer(name, line=2, kind=kind)
        for _ in range(4):
            story.clear(6).backward(7, mean(8)).step(8, name)
    return story


def test_an_optimizer_for_each_epoch() -> None:
    assert said(made_again(EPOCHS).judged()) == [
        "train.py:2: GG504 error: Adam was constructed 3 times for w, each time without the earlier "
        "state; none made more than 4 steps."
    ]


def test_an_empty_state_that_is_loaded_while_the_model_goes_on() -> None:
    story = trained(Story("w").optimizer(kind="Adam"))
    story.add(StateLoaded(site(5), 0, before=1, after=0))
    (found,) = trained(story).judged()
    assert (found.code, found.line) == ("GG504", 5)


@pytest.mark.parametrize(
    ("source", "severity"),
    [
        (EPOCHS + STEPS_BELOW, "error"),
        (NUMBERED + "\n" * 5 + "    optimizer.step()\n", "error"),  # the loop that constructs it also steps
        (NUMBERED + STEPS_BELOW, "info"),
        (NUMBERED.replace("range(3)", "range(EPOCHS)") + STEPS_BELOW, "error"),
        (NUMBERED.replace("range(3)", "loaders") + STEPS_BELOW, "info"),
        (EPOCHS + PASSES_BELOW, "info"),
    ],
)
def test_an_optimizer_for_each_pass_is_an_error_only_if_the_passes_are_epochs_of_one_training(
    source: str, severity: str
) -> None:
    (finding,) = made_again(source).judged("GG504")
    assert (finding.line, finding.severity) == (2, severity)


def test_restored_weights_and_no_state_are_right() -> None:
    assert made_again(EPOCHS, restored=True).judged("GG504") == []
    assert made_again(EPOCHS, kind="SGD").judged() == []


# GG505


def frozen(*, fresh: bool, zero: bool = False) -> Story:
    story = Story("body", "head", source="x\nbody.requires_grad_(False)\n").optimizer()
    story.clear(1).backward(8, mean(8)).step(9)
    body = story.ids("body")
    for _ in range(3):
        story.clear(1, None if fresh else "head").backward(8, mean(8), to=None if fresh else "head")
        facts: dict[str, Any] = {"frozen": body, "zero": body if zero else frozenset()}
        story.add(Stepped(site(9), 0, story.ids(None), moved=story.ids(None), lr=(0.1,), **facts))
    return story


def test_a_gradient_from_before_moves_what_is_frozen() -> None:
    assert said(frozen(fresh=False).judged("GG505")) == [
        "train.py:2: GG505 error: 1 frozen parameter (body) changed in 3 steps of optimizer, with a "
        "leftover gradient."
    ]


def test_a_parameter_that_is_frozen_between_backward_and_step_is_right() -> None:
    assert frozen(fresh=True).judged("GG505") == []


def statistics(*, trainable: bool, moving: bool = False, mode: bool = True, source: str = "") -> Story:
    story = Story("backbone.bn.w", "head", source=source).optimizer(of="head")
    story.facts["backbone.bn.w"] |= {"trainable": trainable, "still": not moving}
    if mode:
        story.add(ModeSet(site(3), True, story.ids(None), depends=True))
    for _ in range(3):
        story.clear(1, "head").backward(8, mean(8), to="head").step(9)
        story.add(StatisticsMoved(site(9), story.ids("backbone.bn.w"), (0.123, 0.4)))
    return story


def test_a_frozen_batch_norm_in_training_mode() -> None:
    assert said(statistics(trainable=False).judged()) == [
        "train.py:3: GG505 warning: 1 batch norm (backbone.bn) that no step trains is in training mode: its "
        "running statistics changed in 3 steps, but the parameters did not. Since the first step, means changed "
        "by 0.12 standard deviations, and variances by 40%."
    ]


def test_a_frozen_batch_norm_whose_mode_nobody_set_is_reported_where_it_is_frozen() -> None:
    frozen_at = "x = 1\nbackbone.requires_grad_(False)\n"
    (finding,) = statistics(trainable=False, mode=False, source=frozen_at).judged()
    assert finding.line == 2
    # A library's model may come that way.
    assert statistics(trainable=False, mode=False, source="backbone = load()\n").judged() == []


def test_a_batch_norm_that_is_frozen_for_a_moment_or_follows_an_average_is_right() -> None:
    assert statistics(trainable=True).judged() == []
    assert statistics(trainable=False, moving=True).judged() == []


# GG405


def test_a_frozen_teacher_whose_gradients_nobody_uses_is_a_note() -> None:
    story = Story("student.w", "teacher.w").optimizer(of="student.w", line=3)
    story.facts["teacher.w"] |= {"still": True, "nbytes": 4_000_000}
    assert said(trained(story, used="student.w").judged()) == [
        "train.py:8: GG405 info: 4 backward calls compute gradients of 4 MB (estimated) for teacher.w. No "
        "optimizer uses them."
    ]


def test_what_a_generators_loss_adds_to_the_discriminator_is_a_note() -> None:
    story = Story("G", "D").optimizer("opt_g", "G", line=1).optimizer("opt_d", "D", line=2)
    for _ in range(4):
        story.clear(3).backward(4, mean(8)).step(5, "opt_g", used="G")
        story.clear(6).backward(7, mean(8), to="D").step(8, "opt_d", used="D")
    assert [finding.line for finding in story.judged("GG405")] == [4]
