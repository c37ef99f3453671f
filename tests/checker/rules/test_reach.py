"""GG401 to GG405: parameters that get no gradient, a zero one, a broken one, or one that nobody uses."""

from __future__ import annotations

from typing import Any

import pytest

from gradgate.checker.rules import Finding
from gradgate.events import Cut, Frame, NoGradEntered, NonfiniteMade, Ran, Term
from tests.checker.rules._build import Story, mean, said, site

MODEL = """\
class Net(nn.Module):
    def __init__(self):
        self.norm1 = nn.LayerNorm(4)
        self.norm2 = nn.LayerNorm(4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        x = self.attend(self.norm1(x))
        return self.mlp(self.norm1(x))

loss = model(x)
loss.backward()
"""


def constant(line: int) -> Term:
    return Term(-2, "constant", site=site(line))


def trained(story: Story, line: int, *terms: Term, to: str, **facts: Any) -> Story:
    for _ in range(4):
        story.clear(1).backward(line, *(terms or (mean(8),)), to=to, **facts).step(9, used=to)
    return story


def left(story: Story, *names: str) -> Story:
    for name in names:
        story.facts[name]["still"] = True
    return story


# GG401


def test_a_layer_that_is_never_used_while_its_sibling_is_used_twice() -> None:
    story = Story("model.norm1.weight", "model.norm2.weight", source=MODEL).optimizer()
    trained(left(story, "model.norm2.weight"), 12, to="model.norm1.weight")
    assert said(story.judged("GG401")) == [
        "train.py:9: GG401 warning: `norm2` is never used: no gradient reached model.norm2.weight in 4 steps."
    ]


def test_a_head_that_runs_and_is_in_no_loss_is_a_note() -> None:
    source = MODEL.replace("return self.mlp(self.norm1(x))", "return self.norm1(x), self.head(x)")
    story = Story("model.norm1.weight", "model.head.weight", source=source).optimizer()
    trained(left(story, "model.head.weight"), 12, to="model.norm1.weight")
    head = story.ids("model.head.weight")
    story.events[3:3] = [Ran(site(9, "forward"), head, recording=True) for _ in range(2)]
    (found,) = story.judged("GG401")
    assert (found.line, found.severity) == (9, "info")


def test_an_expert_of_a_list_that_did_not_run_is_right() -> None:
    source = "self.experts = nn.ModuleList()\nfor e in self.experts: e(x)\nloss.backward()\n"
    story = Story("moe.experts.0.weight", "moe.experts.1.weight", source=source).optimizer()
    trained(left(story, "moe.experts.1.weight"), 3, to="moe.experts.0.weight")
    assert story.judged() == []


def test_a_layer_that_was_reached_once_is_right() -> None:
    story = Story("model.norm1.weight", "model.norm2.weight", source=MODEL).optimizer()
    trained(left(story, "model.norm2.weight"), 12, to="model.norm1.weight")
    story.backward(12, mean(8), to="model.norm2.weight").clear(1)
    assert story.judged("GG401") == []


TIED = """\
embed = nn.Embedding(9, 4)
spare = nn.Linear(4, 4)
out = nn.Linear(4, 9)
out.weight = embed.weight
optimizer = torch.optim.SGD([*embed.parameters(), *spare.parameters()], lr=0.1)
loss = criterion(out(embed(x)), y)
loss.backward()
"""


def test_a_weight_that_a_layer_is_given_is_no_layer_of_that_name() -> None:
    story = Story("embed.weight", "spare.weight", source=TIED).optimizer()
    trained(left(story, "spare.weight"), 7, to="embed.weight")
    assert said(story.judged()) == [
        "train.py:2: GG401 warning: `spare` is never used: no gradient reached spare.weight in 4 steps."
    ]


def test_a_layer_of_a_flat_script_that_is_handed_on_may_be_used() -> None:
    for use in ("layers = [spare]\n", "loss = loss + spare(x)\n", "use(spare)\n"):
        story = Story("embed.weight", "spare.weight", source=TIED + use).optimizer()
        trained(left(story, "spare.weight"), 7, to="embed.weight")
        assert story.judged() == []


def test_a_weight_tied_within_a_class_does_not_hide_the_layer() -> None:
    source = MODEL.replace("self.head = nn.Linear(4, 1)", "self.head.weight = self.norm1.weight")
    story = Story("model.norm1.weight", "model.norm2.weight", source=source).optimizer()
    trained(left(story, "model.norm2.weight"), 12, to="model.norm1.weight")
    (found,) = story.judged("GG401")
    assert found.message.startswith("`norm2` is never used: no gradient reached model.norm2.weight")


# GG402

DETACHED = """\
h = encoder(x).detach()
loss = criterion(decoder(h), y)
loss.backward()
"""


def test_a_value_that_is_only_reported_is_not_cut_off() -> None:
    source = DETACHED.replace("h = encoder(x).detach()", "print(encoder(x).item())").replace(
        "decoder(h)", "decoder(x)"
    )
    story = Story("encoder.w", "decoder.w", source=source).optimizer()
    story.add(Cut(site(1), "item", story.ids("encoder.w"), scalar=True))
    trained(left(story, "encoder.w"), 3, to="decoder.w")
    assert story.judged("GG402") == []


IN_THE_MIDDLE = """\
h = front(x)
with torch.no_grad():
    h = middle(h)
loss = back(h)
loss.backward()
"""


def in_the_middle(source: str = IN_THE_MIDDLE, *, held: bool = False) -> Story:
    """Front's output is given to a module in the block at line 2, or only held when that begins."""
    story = Story("front.w", "back.w", source=source).optimizer()
    ids = story.ids("front.w")
    if held:
        story.add(NoGradEntered(site(2), (("h", ids),)))
    else:
        story.add(NoGradEntered(site(2)), Cut(site(3), "no_grad", ids, scalar=False))
    return trained(left(story, "front.w"), 5, to="back.w")


CUT = [
    "train.py:2: GG402 error: Running without gradients cuts front.w off from the loss: no gradient reached it "
    "in 4 steps."
]


@pytest.mark.parametrize("held", [False, True])
def test_a_block_that_only_measures_cuts_nothing_off(held: bool) -> None:
    source = IN_THE_MIDDLE.replace("h = middle(h)", "print(measure(h))").replace("back(h)", "back(x)")
    assert in_the_middle(source, held=held).judged("GG402") == []


PENALTY = """\
score = critic(mixed)
slope = torch.autograd.grad(score.sum(), mixed)[0]
penalty = (slope.norm(2, 1) - 1).square().mean()
loss = score.mean() + 10 * penalty
loss.backward()
"""


def test_a_sum_that_starts_from_zero_and_a_detached_factor_are_right() -> None:
    source = (
        "total = 0\nfor x in data:\n    total = total + model(x) * weight(x).detach()\ntotal.backward()\n"
    )
    story = Story("model.w", source=source).optimizer()
    story.add(Cut(site(3), "detach", story.ids("model.w"), scalar=True))
    trained(story, 4, mean(8, line=3), constant(3), to="model.w")
    assert story.judged() == []


CONSISTENCY = """\
def consistency(model, x):
    with torch.no_grad():
        out = model(x)
    return spread(out)

out = model(x)
loss = criterion(out, y) + 2 * consistency(model, x)
loss.backward()
"""


def consistent(source: str = CONSISTENCY, *, times: int = 4, then: tuple[Term, ...] = ()) -> list[Finding]:
    """The second summand of line 8 is constant in the first ``times`` of four calls, and ``then`` in the others."""
    story = Story("model.w", source="import torch\n" + source).optimizer()
    for call in range(4):
        terms = (mean(8, line=8), *([constant(8)] if call < times else then))
        story.add(NoGradEntered(site(3, "consistency")))
        story.clear(1).backward(9, *terms, uses=((0, site(7)),)).step(10)
    return story.judged("GG402")


def test_a_constant_of_another_model_or_of_a_warm_up_is_right() -> None:
    teacher = CONSISTENCY.replace("consistency(model, x)\n", "consistency(teacher, x)\n")
    assert teacher != CONSISTENCY
    assert consistent(teacher) == []
    assert consistent(times=2, then=(mean(8, line=8),)) == []


def test_a_constant_that_only_some_steps_add_is_found() -> None:
    assert said(consistent(times=2)) == said(consistent())


def test_a_weight_that_is_a_sum_with_a_number_is_no_summand() -> None:
    source = "v = model(x)\nloss = 0\nloss = loss + v / (1 + v.item())\nloss.backward()\n"
    story = Story("model.w", source=source).optimizer()
    story.add(Cut(site(3), "item", story.ids("model.w"), scalar=True))
    trained(story, 4, mean(8, line=3), constant(3), to="model.w", uses=((0, site(1)),))
    assert story.judged() == []


def test_a_straight_through_sum_is_right() -> None:
    source = "soft = model(x)\nloss = soft + (hard(soft) - soft).detach()\nloss.backward()\n"
    story = Story("model.w", source=source).optimizer()
    story.add(Cut(site(2), "detach", story.ids("model.w"), scalar=True))
    trained(story, 3, mean(8, line=2), constant(2), to="model.w")
    assert story.judged() == []


# GG403


def zero(source: str, looks: int = 5, zeros: int = 5, how: Any = "finished") -> list[Finding]:
    story = Story("net.w", "head.w", source=source).optimizer()
    story.facts["head.w"] |= {"looks": looks, "zeros": zeros, "zeroed": (Frame("train.py", 1, "forward"),)}
    return trained(story, 9, to="net.w head.w").judged("GG403", how=how)


def test_a_gradient_that_is_always_zero() -> None:
    assert said(zero("return F.relu(F.log_softmax(x, 1))\n")) == [
        "train.py:1: GG403 error: The gradient of head.w was all zeros in each of 5 steps, "
        "because an operation at line 1 has a derivative of zero."
    ]
    assert len(zero("loss = main + (epoch // epochs) * aux\n")) == 1


# GG404


def broken(line: int, source: str, **facts: Any) -> Story:
    story = Story("net.w", source=source).optimizer().backward(9, mean(8), value=1.0)
    story.add(NonfiniteMade(site(line), "SqrtBackward0", story.ids("net.w"), **facts))
    return story


def test_a_broken_gradient_that_a_step_used() -> None:
    story = broken(1, "d = d2.sqrt()\n").step(9, nonfinite=frozenset({0}))
    assert said(story.judged()) == [
        "train.py:1: GG404 error: The gradient becomes NaN or infinite here (Sqrt), and optimizer updated "
        "net.w with it, first in step 1."
    ]


def test_a_skipped_step_and_a_training_that_diverges_are_not_reported() -> None:
    assert broken(1, "").judged("GG404") == []
    story = Story("net.w").optimizer().backward(9, mean(8), value=1.0).step(9).clear(1)
    story.backward(9, mean(8), value=1e20)
    story.add(NonfiniteMade(site(1), "MulBackward0", story.ids("net.w")))
    assert story.step(9, nonfinite=frozenset({0})).judged("GG404") == []


# GG405


def test_the_other_network_of_a_gan_is_a_note() -> None:
    story = Story("G.w", "D.w").optimizer("opt_g", "G.w").optimizer("opt_d", "D.w")
    for _ in range(4):
        story.clear(1, "D.w").backward(2, mean(8), to="D.w").step(3, "opt_d")
        story.clear(4, "G.w").backward(5, mean(8), to="G.w D.w").step(6, "opt_g")
    assert [(one.code, one.line, one.severity) for one in story.judged("GG405")] == [("GG405", 5, "info")]


def test_what_is_moved_by_hand_or_is_used_is_no_waste() -> None:
    story = Story("a.w", "b.w").optimizer("one", "a.w").optimizer("two", "b.w")
    for _ in range(4):
        story.clear(1).backward(2, mean(8)).step(3, "one").step(4, "two")
    assert story.judged() == []


# GG408
