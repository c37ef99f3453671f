"""GG401 to GG406: parameters that get no gradient, a zero one, a broken one, or one that nobody uses or wants."""

from __future__ import annotations

from typing import Any

import pytest

from gradgate.checker.rules import Finding
from gradgate.events import Frame, NonfiniteMade, Term
from tests.checker.rules._build import Story, mean, said, site
from tests.checker.rules._watched import findings_of

SCRIPT = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(4)
        self.norm2 = nn.LayerNorm(4)
        self.mlp = nn.Linear(4, 4)

    def forward(self, x, first=False):
        x = x + self.norm1(x)
        return x + self.mlp(self.norm1(x))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(8, 4), step == 0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def trained(story: Story, line: int, *terms: Term, to: str, **facts: Any) -> Story:
    for _ in range(4):
        story.clear(1).backward(line, *(terms or (mean(8),)), to=to, **facts).step(9, used=to)
    return story


# GG401

LAST = "return x + self.mlp(self.norm1(x))"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param(LAST, [(13, "warning")], id="its sibling is used twice"),
        pytest.param("return x + self.mlp(x)", [(8, "warning")], id="it is never used"),
        pytest.param("self.norm2(x); return x + self.mlp(x)", [(13, "info")], id="beside used values"),
        pytest.param(
            "self.norm2(x)\n        return x + self.mlp(x)", [(13, "warning")], id="its result is dropped"
        ),
        pytest.param("return x + self.mlp(self.norm2(x) if first else x)", [], id="it is reached once"),
        pytest.param("return x + self.mlp(self.norm2(x))", [], id="it is used"),
    ],
)
def test_a_layer_that_no_loss_uses(last: str, expected: list[tuple[int, str]]) -> None:
    found = findings_of(SCRIPT.replace(LAST, last))
    assert [(each.line, each.severity) for each in found if each.code == "GG401"] == expected


def test_an_expert_of_a_list_that_never_runs_is_a_note() -> None:
    experts = SCRIPT.replace(
        "self.norm1 = nn.LayerNorm(4)", "self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))"
    ).replace("        self.norm2 = nn.LayerNorm(4)\n", "")
    found = findings_of(
        experts.replace(LAST, "return x + self.mlp(x)").replace("self.norm1(", "self.norms[0](")
    )
    assert [(each.code, each.line, each.severity) for each in found] == [("GG401", 7, "info")]


def test_a_tensor_that_a_method_returns_and_the_script_drops_is_assigned() -> None:
    drops = "y = self.norm2(x)\n        x.index_add(0, torch.arange(8), y)\n        return x + self.mlp(x)"
    (found,) = findings_of(SCRIPT.replace(LAST, drops))
    assert (found.line, str(found.fix[0])) == (
        14,
        "Insert `x = x.index_add(0, torch.arange(8), y)` before line 14.",
    )


# GG406

FROM_THE_NETWORK = "return torch.randn(8, 1) + 0.9 * self.mlp(x), self.mlp(x.flip(0))"


@pytest.mark.parametrize(
    ("loss", "codes"),
    [
        ("F.mse_loss(value, target)", ["GG406"]),
        ("(target - value).square().mean()", ["GG406"]),
        ("F.mse_loss(value, target.detach())", []),
        ("F.mse_loss(value, torch.zeros(8, 4)) + 0 * target.mean()", []),
        (
            'F.kl_div(value.log_softmax(1), target.softmax(1), reduction="batchmean")',
            [],
        ),  # of one network: its views may agree
    ],
)
def test_a_target_of_the_networks_own_output(loss: str, codes: list[str]) -> None:
    script = SCRIPT.replace(LAST, FROM_THE_NETWORK).replace("        self.norm2 = nn.LayerNorm(4)\n", "")
    lines = f"target, value = model(torch.randn(8, 4))\n    loss = torch.nn.functional.{loss}".replace(
        "functional.F.", "functional."
    ).replace("torch.nn.functional.(", "(")
    script = script.replace("loss = model(torch.randn(8, 4), step == 0).square().mean()", lines)
    assert [each.code for each in findings_of(script) if each.severity != "info"] == codes


@pytest.mark.parametrize(
    ("then", "codes"), [("x.detach()", ["GG406"]), ("y = x.detach()", []), ("x.detach().shape", [])]
)
def test_a_detached_value_that_is_dropped(then: str, codes: list[str]) -> None:
    script = SCRIPT.replace("        self.norm2 = nn.LayerNorm(4)\n", "").replace(
        LAST, f"{then}\n        return x + self.mlp(x)"
    )
    assert [each.code for each in findings_of(script) if each.severity != "info"] == codes


# GG402


@pytest.mark.parametrize(
    "last",
    [
        "x.sum().item(); return x + self.mlp(x)",  # only reported
        "return x + self.mlp(x) * self.mlp(x).detach()",  # a detached factor
        "y = self.mlp(x); return y + (y.round() - y).detach()",  # straight through
        "y = self.mlp(x).sum(); return x / (1 + y.item()) + self.mlp(x)",  # a weight
        "import gradgate as gg; return self.mlp(x) + gg.stop_gradient(self.mlp(x))",  # a gate
    ],
)
def test_a_value_that_leaves_the_graph_on_purpose_is_right(last: str) -> None:
    script = SCRIPT.replace("        self.norm2 = nn.LayerNorm(4)\n", "").replace(LAST, last)
    assert [each.code for each in findings_of(script) if each.severity != "info"] == []


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
