"""GG304: steps after which nothing has moved."""

from gradgate.checker.rules import Finding
from gradgate.events import Scheduled, SchedulerMade, Stepped
from tests.checker.rules._build import Story, said, site


def still(*, lr: float, used: bool = True) -> Stepped:
    ids = frozenset({0})
    return Stepped(site(4), 0, ids if used else frozenset(), lr=(lr,))


def test_a_rate_of_zero_throughout() -> None:
    story = Story("fc.weight").optimizer(line=1).add(SchedulerMade(site(2), 0, "LambdaLR", 0, lr=(0.0,)))
    for _ in range(3):
        story.clear(2).backward(3).add(still(lr=0.0), Scheduled(site(5), 0, (0.0,)))
    assert said(story.judged("GG304")) == [
        "train.py:2: GG304 error: The learning rate of optimizer is 0 in all of its 3 steps."
    ]
    assert story.judged("GG304", how="stopped") == []  # a warm-up may still rise
    story.clear(2).backward(3).step(4)
    assert story.judged("GG304") == []


def test_steps_before_any_backward_have_no_gradient() -> None:
    early, late = Story("fc.weight").optimizer(), Story("fc.weight").optimizer()
    for number in range(4):
        early.clear(2, full="").add(still(lr=0.1, used=False)).backward(5)
        late.backward(5).clear(2).add(still(lr=0.1, used=False))
        assert number < 4
    assert said(early.judged("GG304")) == [
        "train.py:4: GG304 error: optimizer steps before backward(): none of its 4 steps has a gradient."
    ]
    assert late.judged("GG304") == []  # cleared in between: another mistake


def test_a_step_that_is_named_and_not_called() -> None:
    wrong = Story("fc.weight", source="x\nx\nloss.backward()\noptimizer.step\n").optimizer()
    right = Story("fc.weight", source="x\nx\nloss.backward()\nif last: optimizer.step()\n").optimizer()
    for _ in range(3):
        wrong.clear(2).backward(3)
        right.clear(2).backward(3)
    assert right.judged("GG304") == []
    Story(source="x\nx\nloss.backward()\noptimizer.step\n")
    wrong.facts["fc.weight"]["still"] = True
    assert said(wrong.judged("GG304")) == [
        "train.py:4: GG304 info: optimizer.step is never called: 3 backward calls compute gradients that "
        "no step uses."
    ]


def test_an_optimizer_that_never_steps_is_named_after_the_line_that_makes_it() -> None:
    story = Story("fc.weight", source="opt = torch.optim.SGD(fc.parameters())\n\nloss.backward()\nopt.step\n")
    story.optimizer("")  # only a step shows the variable to the watcher
    story.facts["fc.weight"]["still"] = True
    for _ in range(3):
        story.clear(2).backward(3)
    (found,) = story.judged("GG304")
    assert found.message.startswith("opt.step is never called: ")


def test_updates_that_16_bit_parameters_round_away() -> None:
    def found(*lrs: float, stuck: tuple[str, ...] = ("body", "head"), unseen: int = 0) -> list[Finding]:
        """Each step has a learning rate. The last ``unseen`` steps are only counted."""
        story = Story("body", "norm", "head").optimizer(line=1)
        for name, size in (("body", 60), ("norm", 8), ("head", 50)):
            story.facts[name] = {"shape": (size,), "dtype": "bfloat16"}
        used, rounded = story.ids(None), story.ids(stuck)
        for number, lr in enumerate(lrs):
            seen = number < len(lrs) - unseen
            facts = {"rounded": rounded, "moved": used} if seen else {}
            story.clear(2).backward(3).add(Stepped(site(4), 0, used, lr=(lr,), seen=seen, **facts))
        return story.judged("GG304")

    same = [1e-5] * 12
    assert said(found(*same)) == [
        "train.py:1: GG304 warning: 12 steps of optimizer hardly moved body and head, although the gradients are "
        "not zero: at learning rate 1e-05, bfloat16 rounds most of their updates away."
    ]
    assert [each.severity for each in found(*same, stuck=("body", "norm", "head"))] == ["error"]
    assert found(*same, stuck=("head",)) == []  # fewer than half of the values
    assert found(*same[:7]) == []  # too few steps
    assert found(*same, unseen=5) == []
    rising = [1e-6 * step for step in range(1, 13)]
    assert found(*rising) == []  # a warm-up
    assert found(*rising, *[1.2e-5] * 12) != []
    assert found(*reversed(rising)) != []  # it falls from the first step on
    assert found(*[0.0] * 12) == []
