"""GG305: what is written into parameters beside the optimizer."""

from gradgate.events import Backward, ModeSet
from tests.checker.rules._build import Story, said, site

PROBE = """\
@torch.no_grad()
def sharpness(model, x, y):
    for p in model.parameters():
        p.add_(noise(p))
    return criterion(model(x), y)
"""


def story(source: str = "") -> Story:
    made = Story("fc.weight", source=source).optimizer()
    made.facts["fc.weight"]["shape"] = (4, 4)
    return made


def steps(told: Story, count: int = 3, **facts: object) -> Story:
    for _ in range(count):
        told.clear(1).backward(2).step(3, changed=told.ids(None), **facts)
    return told


def test_writes_between_a_forward_and_its_backward() -> None:
    told = story()
    for _ in range(2):
        told.clear(1).write(4, target="value", op="clamp_")
        told.add(Backward(site(5), told.ids(None), stale=((0, site(4)),))).step(6)
    assert said(told.judged("GG305")) == [
        "train.py:4: GG305 error: The values of fc.weight are changed between a forward and its backward, "
        "2 times."
    ]


def test_a_descent_step_by_hand_beside_the_optimizers() -> None:
    def beside(*, restored: bool) -> Story:
        told = story()
        for _ in range(3):
            told.clear(1).backward(2).write(3, target="value", op="sub_", along_gradient=True)
            if restored:
                told.write(4, target="value", op="copy_")
            told.step(5)
        return told

    assert said(beside(restored=False).judged("GG305")) == [
        "train.py:3: GG305 error: The script applies the gradient of fc.weight by hand, and optimizer "
        "applies it again, in 3 steps."
    ]
    assert beside(restored=True).judged("GG305") == []


def test_rounding_and_pulling_back_after_each_step() -> None:
    rounded, pulled, clamped = story(), story(), story()
    for _ in range(4):
        steps(rounded, 1).write(4, target="value", op="copy_", undoes=True)
        steps(pulled, 1).write(4, target="value", op="copy_", pulled=0.95)
        steps(clamped, 1).write(4, target="value", op="clamp_")
    assert [(one.line, one.severity) for one in rounded.judged("GG305")] == [(4, "warning")]
    assert said(pulled.judged("GG305")) == [
        "train.py:4: GG305 warning: The script moves fc.weight 95% of the way to values that never "
        "change, 4 times."
    ]
    assert clamped.judged("GG305") == []


def test_what_an_evaluation_writes_and_leaves() -> None:
    def averaged(*, restored: bool) -> Story:
        told = story()
        for _ in range(2):
            steps(told).write(4, target="value", op="copy_", restored=restored)
            told.add(ModeSet(site(5), False, told.ids(None), False))
        return steps(told)

    assert said(averaged(restored=False).judged("GG305")) == [
        "train.py:4: GG305 warning: An evaluation overwrites fc.weight and doesn't restore the values, 2 "
        "times: training continues from them."
    ]
    assert averaged(restored=True).judged("GG305") == []  # a checkpoint


def test_a_probe_that_does_not_put_the_weights_back() -> None:
    def probed(function: str) -> Story:
        told = story(PROBE)
        for _ in range(3):
            steps(told, 1).write(4, target="value", op="add_")
            write = told.events.pop()
            told.add(type(write)(site(4, function), "value", told.ids(None), "add_"))  # type: ignore[call-arg]
        return steps(told, 1)

    assert [one.line for one in probed("sharpness").judged("GG305")] == [4]
    noise = story()
    for _ in range(3):
        steps(noise, 1).write(4, target="value", op="add_")
    assert noise.judged("GG305") == []  # Langevin
