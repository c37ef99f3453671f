"""GG305: what is written into parameters beside the optimizer."""

from gradgate.events import ModeSet
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


def test_pulling_back_after_each_step() -> None:
    pulled, near, clamped = story(), story(), story()
    for _ in range(4):
        steps(near, 1).write(4, target="value", op="lerp_", pulled=0.01)
        steps(pulled, 1).write(4, target="value", op="copy_", pulled=0.95)
        steps(clamped, 1).write(4, target="value", op="clamp_")
    assert said(pulled.judged("GG305")) == [
        "train.py:4: GG305 warning: The script moves fc.weight 95% of the way to values that never "
        "change, 4 times."
    ]
    assert near.judged("GG305") == []  # towards a pretrained model
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
