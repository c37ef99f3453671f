"""Advice that was followed and did harm, as scripts: what is said and offered now, and that it trains as the twin.

A twin is the right script. It ends with the same parameters, to the bit, as the wrong one with its edits made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gradgate.checker.fixes import apply, edits_for
from tests.test_scripts import Outcome, run

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\ntorch.manual_seed(0)\n"


ALIAS = (
    HEAD
    + """
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def freeze(what):
    what.requires_grad_(False)


for i in range(12):
    if i == 4:
        freeze(net[0].weight)
    opt.zero_grad(set_to_none=False)
    net(torch.randn(8, 4)).square().mean().backward()
    opt.step()
"""
)


# The code, its line, what is said, the twin as replacements; no twin where no edit may be offered.
SEEN = {
    "a frozen parameter of another name": (ALIAS, "GG505", "what.requires_grad_", "to None", None),
}


def ran(text: str, path: Path) -> Outcome:
    path.write_text(text, "utf-8")
    return run(path, watch=True)


@pytest.mark.parametrize("case", SEEN)
def test_advice_that_is_followed_trains_as_the_right_script_does(case: str, tmp_path: Path) -> None:
    text, code, at, says, twin = SEEN[case]
    found = ran(text, tmp_path / "train.py").findings
    finding = next(each for each in found if each.code == code and at in text.splitlines()[each.line - 1])
    assert says in finding.advice
    edits = edits_for(finding)
    assert bool(edits) == (twin is not None)
    if twin is None:
        return
    right = text
    for old, new in twin:
        assert old in right
        right = right.replace(old, new, 1)
    fixed = ran("\n".join(apply(text.splitlines(), edits)) + "\n", tmp_path / "fixed.py")
    assert [each.code for each in fixed.findings if each.severity != "info" or each.code == code] in (
        [],
        ["GG405"],
    )
    if code == "GG103":  # the same sum in another order
        fixed_weight = weight(tmp_path / "fixed.py")
        (tmp_path / "twin.py").write_text(right, "utf-8")
        assert fixed_weight == pytest.approx(weight(tmp_path / "twin.py"), rel=1e-5)
        return
    assert fixed.computed == ran(right, tmp_path / "twin.py").computed


def weight(script: Path) -> float:
    """Return the sum of squares of a script's weights, which are all that it trains."""
    variables: dict[str, object] = {}
    exec(compile(script.read_text("utf-8"), str(script), "exec"), variables)
    return float(variables["net"].weight.detach().square().sum())  # type: ignore[attr-defined]
