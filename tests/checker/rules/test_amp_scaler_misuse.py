"""GG303: which gradients carry a gradient scaler's scale."""

from gradgate.events import ScalerUsed
from tests.checker.rules._build import Story, mean, said, site

UNSCALED, STEPPED = ScalerUsed(site(4), "unscale", 0, 0), ScalerUsed(site(6), "step", 0, 0)
UPDATED = ScalerUsed(site(7), "update", 0)


def story() -> Story:
    return Story("fc.weight").optimizer().add(ScalerUsed(site(1), "made", 0))


def test_clipping_what_still_carries_the_scale() -> None:
    wrong, right = story(), story()
    for _ in range(3):
        wrong.clear(2).backward(3, scaler=0).clip(5).step(6, scaler=0).add(STEPPED, UPDATED)
        right.clear(2).backward(3, scaler=0).add(UNSCALED).clip(5).step(6, scaler=0).add(STEPPED, UPDATED)
    assert said(wrong.judged("GG303")) == [
        "train.py:5: GG303 error: Gradients are clipped before the gradient scaler unscales them, in 3 steps."
    ]
    assert right.judged("GG303") == []


def test_a_step_around_the_scaler() -> None:
    wrong = story()
    for _ in range(3):
        wrong.clear(2).backward(3, scaler=0).step(6).add(UPDATED)
    assert said(wrong.judged("GG303")) == [
        "train.py:6: GG303 error: optimizer is stepped without the gradient scaler: its gradients still "
        "include the scale, in 3 steps."
    ]


def test_a_loss_or_a_part_of_it_that_is_not_scaled() -> None:
    bare, part = story(), story()
    terms = mean(8, scaled=True), mean(8)
    for _ in range(3):
        bare.clear(2).backward(3, scaler=0).backward(9).step(6, scaler=0).add(STEPPED, UPDATED)
        part.clear(2).add(ScalerUsed(site(8), "scale", 0)).backward(3, *terms, scaler=0).step(
            6, scaler=0
        ).add(STEPPED, UPDATED)
    assert [(one.line, one.severity) for one in bare.judged("GG303")] == [(9, "error")]
    assert [(one.line, one.severity) for one in part.judged("GG303")] == [(8, "error")]


def test_a_penalty_after_unscaling_needs_no_scale() -> None:
    right = story()
    for _ in range(3):
        right.clear(2).backward(3, scaler=0).add(UNSCALED).backward(9).step(6, scaler=0).add(STEPPED, UPDATED)
    assert right.judged("GG303") == []


def test_a_scaler_for_each_step_never_adapts() -> None:
    wrong = Story("fc.weight").optimizer()
    for number in range(3):
        wrong.add(ScalerUsed(site(2), "made", number)).backward(3, scaler=number)
        wrong.add(ScalerUsed(site(6), "step", number, 0, skipped=True)).clear(7)
    assert said(wrong.judged("GG303")) == [
        "train.py:2: GG303 error: 3 gradient scalers are constructed, one for each step; 3 of the steps "
        "are skipped."
    ]
