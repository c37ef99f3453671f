"""GG305: what is written into parameters beside the optimizer."""

from gradgate.events import ModeSet
from tests.checker.rules._build import Story, said, site


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
        "train.py:4: GG305 warning: The script moves fc.weight 0.95 of the way to values that never "
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
