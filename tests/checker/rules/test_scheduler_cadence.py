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


def test_a_length_in_epochs_that_is_counted_in_batches_is_over_too_soon() -> None:
    assert said(run(3, each_batch=True).judged("GG301")) == [
        "train.py:7: GG301 warning: CosineAnnealingLR is 3 epochs long but is advanced at each batch, 12 "
        "times for 12 steps."
    ]


def test_a_schedule_as_long_as_the_run_has_steps_is_advanced_at_each() -> None:
    assert said(run(12, each_batch=False).judged("GG301")) == [
        "train.py:8: GG301 warning: CosineAnnealingLR is 12 steps long, like the run, but is advanced "
        "only 3 times."
    ]
    assert run(12, each_batch=False).judged("GG301", how="stopped") == []
    assert run(100, each_batch=False).judged("GG301") == []  # 100 epochs, of which 3 are tried


def test_a_schedule_that_goes_on_at_micro_batches_is_over_too_soon() -> None:
    assert said(run(6, each_batch=True, micro=2).judged("GG301")) == [
        "train.py:7: GG301 warning: CosineAnnealingLR is advanced 12 times for 6 steps, at each "
        "micro-batch, and ends after 50% of the calls."
    ]
    assert run(12, each_batch=True, micro=2).judged("GG301") == []  # its length is in micro-batches


def test_a_length_in_micro_batches_that_is_counted_in_windows_is_never_reached() -> None:
    def windows(length: int, source: str = "") -> Story:
        story = Story("fc.weight", source=source).optimizer()
        story.add(SchedulerMade(site(1), 0, "CosineAnnealingLR", 0, length, lr=(0.1,)))
        for _ in range(6):
            story.backward(5).backward(5).step(6).clear(7).add(advanced(7))
        return story

    assert said(windows(12).judged("GG301")) == [
        "train.py:1: GG301 warning: CosineAnnealingLR's length, 12, is the run's number of micro-batches, "
        "but the schedule is advanced once per 2 micro-batches: the run ends after 50% of the schedule."
    ]
    assert windows(12).judged("GG301", how="stopped") == []
    assert windows(16).judged("GG301") == []
    assert (
        windows(12, "CosineAnnealingLR(optimizer, 4 * len(loader) // 2)").judged("GG301") == []
    )  # a longer plan


def test_right_paces_are_silent() -> None:
    assert run(12, each_batch=True).judged("GG301") == []
    assert run(3, each_batch=False).judged("GG301") == []
    assert run(1, epochs=1, each_batch=False).judged("GG301") == []
    assert run(200, epochs=1, each_batch=False, source="T_max=epochs").judged("GG301") == []


def test_a_scheduler_that_is_never_advanced() -> None:
    story = Story("fc.weight", source="scheduler = StepLR(optimizer, 3)\n").optimizer().add(made(3, "StepLR"))
    for _ in range(3):
        story.backward(5).step(6).clear(7)
    assert said(story.judged("GG301")) == [
        "train.py:1: GG301 warning: StepLR is never advanced: optimizer makes all 3 steps at the first "
        "learning rate, 0.1."
    ]
    assert story.judged("GG301", how="stopped") == []


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
        story = run(30, epochs=0, each_batch=False)
        for _ in range(2):
            story.add(advanced(4, lr)).backward(5).step(6).clear(7)
        return story

    assert said(early(0.05).judged("GG301")) == [
        "train.py:4: GG301 warning: The schedule is advanced before the first step: the first learning "
        "rate, 0.1, is never used, and training begins at 0.05."
    ]
    assert early(0.1).judged("GG301") == []  # no rate is lost
