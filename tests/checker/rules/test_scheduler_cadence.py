"""GG301: how often a learning-rate schedule is advanced."""

from gradgate.events import EpochEnded, EpochStarted, Scheduled, SchedulerMade
from tests.checker.rules._build import Story, said, site

LOOP = """\
scheduler = CosineAnnealingLR(optimizer, {length})
for epoch in range(epochs):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = epoch
"""


def made(length: float | None, kind: str = "CosineAnnealingLR") -> SchedulerMade:
    return SchedulerMade(site(1), 0, kind, 0, length, lr=(0.1,))


def advanced(line: int, lr: float = 0.05) -> Scheduled:
    return Scheduled(site(line), 0, (lr,))


def run(
    length: float | None,
    *,
    epochs: int = 3,
    batches: int = 4,
    each_batch: bool,
    source: str = "T_max=10",
    micro: int = 1,
) -> Story:
    story = Story("fc.weight", source=LOOP.format(length=source)).optimizer().add(made(length))
    for _ in range(epochs):
        story.add(EpochStarted(site(3), 0))
        for batch in range(batches):
            story.backward(5)
            if batch % micro == micro - 1:
                story.step(6).clear(7)
            if each_batch:
                story.add(advanced(7))
        story.add(EpochEnded(site(3), 0, batches))
        if not each_batch:
            story.add(advanced(8))
    return story


def paced(*rates: float, kind: str = "StepLR", length: float = 3.0) -> Story:
    """A story with one step and one call of the scheduler for each rate."""
    story = Story("fc.weight").optimizer().add(made(length, kind))
    for rate in rates:
        story.backward(5).step(6, lr=(rate,)).clear(7).add(advanced(8, rate))
    return story


def test_a_cosine_that_climbs_back_after_its_length() -> None:
    twice = paced(0.1, 0.05, 0.0, 0.05, 0.1, 0.05, kind="CosineAnnealingLR", length=3)
    (note,) = twice.judged("GG301")  # the length may count the batches of an epoch
    assert (note.severity, note.line, "climbs back to 0.1" in note.message) == ("info", 8, True)
    assert paced(0.1, 0.05, 0.0, kind="CosineAnnealingLR").judged("GG301") == []


def test_a_rate_that_is_gone_after_a_fifth_of_the_steps() -> None:
    (over,) = paced(0.1, 0.001, *[1e-5] * 8).judged("GG301")
    assert (over.severity, over.line, over.evidence["steps"]) == ("warning", 8, 10)
    assert paced(*[0.1] * 4, *[0.01] * 3, *[0.001] * 3).judged("GG301") == []


def test_a_schedule_as_long_as_the_run_has_steps_is_advanced_at_each() -> None:
    assert said(run(12, each_batch=False).judged("GG301")) == [
        "train.py:8: GG301 warning: CosineAnnealingLR is 12 long but is advanced only 3 times: the run of 12 "
        "steps and 12 micro-batches ends after 25% of the schedule."
    ]
    assert run(12, each_batch=False).judged("GG301", how="stopped") == []
    assert run(100, each_batch=False).judged("GG301") == []  # 100 epochs, of which 3 are tried
    assert run(3, each_batch=False).judged("GG301") == []


def test_a_scheduler_that_is_never_advanced() -> None:
    story = Story("fc.weight", source="scheduler = StepLR(optimizer, 3)\n").optimizer().add(made(3, "StepLR"))
    for _ in range(3):
        story.backward(5).step(6).clear(7)
    (never,) = story.judged("GG301")
    assert (never.severity, never.line, never.evidence["rate"]) == ("warning", 1, 0.1)
    assert story.judged("GG301", how="stopped") == []


def test_a_function_that_returns_rates_in_place_of_factors() -> None:
    wrong, right = (paced(*[rate] * 3, kind="LambdaLR", length=0) for rate in (0.01, 0.1))
    assert [
        one.message.endswith("its product with the optimizer's rate.") for one in wrong.judged("GG301")
    ] == [True]
    assert right.judged("GG301") == []


def test_a_scheduler_that_is_made_anew_before_its_end() -> None:
    story = Story("fc.weight").optimizer()
    for number in range(3):
        story.add(SchedulerMade(site(3), number, "CosineAnnealingLR", 0, 30.0, lr=(0.1,)))
        for rate in (0.1, 0.09):
            story.backward(5).step(6, lr=(rate,)).clear(7).add(Scheduled(site(8), number, (rate - 0.01,)))
    (anew,) = story.judged("GG301")
    assert (anew.line, anew.evidence["times"]) == (3, 3)


def test_the_schedulers_of_another_are_not_its_own_masters() -> None:
    story = (
        Story("fc.weight")
        .optimizer()
        .add(made(3), SchedulerMade(site(2), 1, "SequentialLR", 0, 12.0, lr=(0.1,)))
    )
    for _ in range(3):
        story.backward(5).step(6).clear(7)
        story.add(Scheduled(site(8), 0, (0.1,), inner=True), Scheduled(site(8), 1, (0.1,)))
    assert story.judged("GG301") == []


def test_advancing_before_the_first_step_skips_the_first_rate() -> None:
    def early(lr: float) -> Story:
        story = Story("fc.weight").optimizer().add(made(2, "StepLR"))
        for _ in range(3):
            story.add(advanced(4, lr)).backward(5).step(6, lr=(lr,)).clear(7)
        return story

    assert said(early(0.05).judged("GG301")) == [
        "train.py:4: GG301 warning: The schedule is advanced before the first step: the first learning "
        "rate, 0.1, is never used, and training begins at 0.05."
    ]
    assert early(0.1).judged("GG301") == []  # no rate is lost
