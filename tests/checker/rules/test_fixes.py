"""A mending mends: with its edits made, a wrong script of the corpus runs, and its mistake is found no more."""

import linecache
import sys
from pathlib import Path

import pytest

from gradgate.checker.fixes import Edit, apply, edits_for
from gradgate.checker.rules import Finding, rules
from tests.test_scripts import WRONG, name, run

CATEGORIES = {
    "accumulation-scaling": 8,
    "accumulation-window": 8,
    "amp-scaler-misuse": 9,
    "broken-graph": 14,
    "clip-misplaced": 10,
    "cross-loss-leak": 7,
    "double-counting": 2,
    "frozen-state-drift": 8,
    "graph-retention": 7,
    "ineffective-step": 10,
    "loss-reduction": 7,
    "missing-zero-grad": 13,
    "nonfinite-gradient": 7,
    "optimizer-state-reset": 1,
    "param-in-multiple-optimizers": 3,
    "param-not-in-optimizer": 8,
    "scheduler-cadence": 8,
    "stale-optimizer-params": 4,
    "train-eval-mode": 6,
    "wasted-gradient": 5,
    "zero-grad-misplaced": 10,
    "zero-gradient": 2,
}

# What the mended script is told next, and why: one mistake had hidden it.
LEFT = {
    "wrong/broken-graph/frozen_decoder": "GG405: the decoder's own gradients are nobody's",
    "wrong/broken-graph/stitched_middle": "GG501: the middle is in no optimizer's list",
    "wrong/ineffective-step/step_then_backward": "GG403: the last bias cancels in a difference",
    "wrong/scheduler-cadence/unet_milestones": "GG301: its milestones are epochs",
}


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_a_script_with_its_mending_made_shows_no_mistake(
    category: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.chdir(tmp_path)
    offered = []
    for script in (one for one in WRONG if one.parent.name == category):
        findings = [one for one in run(script, watch=True).findings if one.category == category]
        edits = [edit for finding in findings for edit in edits_for(finding)]
        if not edits:
            continue
        offered.append(name(script))
        copy = tmp_path / f"{script.stem}.py"
        copy.write_text("\n".join(apply(script.read_text("utf-8").splitlines(), edits)) + "\n", "utf-8")
        findings = run(copy, watch=True).findings
        left = [one.code for one in findings if one.severity != "info" or one.category == category]
        expected = [LEFT[name(script)].partition(":")[0]] if name(script) in LEFT else []
        assert left == expected, name(script)
    assert len(offered) == CATEGORIES[category], offered


def found(code: str, file: Path, line: int, fix: str = "", message: str = "") -> Finding:
    linecache.checkcache(str(file))
    return Finding(code, "", "error", str(file), line, message, "", fix)


def test_a_condition_that_counts_from_0_counts_from_1(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for i, x in enumerate(loader):\n    if i % N == 0:  # now\n        optimizer.step()\n")
    assert edits_for(found("GG101", file, 2)) == (
        Edit(2, ("    if (i + 1) % N == 0 or i + 1 == len(loader):  # now",)),
    )


@pytest.mark.parametrize(
    "lines",
    [
        "for i, x in enumerate(loader, 1):\n    if i % N == 0:\n        optimizer.step()\n",  # counts from 1
        "for i, x in enumerate(make()):\n    if i % N == 0:\n        optimizer.step()\n",  # has no length
        "for x in loader:\n    if i % N == 0:\n        optimizer.step()\n",
        "for i, x in enumerate(loader):\n    if j % N == 0:\n        optimizer.step()\n",
        "for i, x in enumerate(loader):\n    if i % N == 0 and x:\n        optimizer.step()\n",
    ],
)
def test_where_the_lines_do_not_say_enough_nothing_is_offered(lines: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(lines)
    assert edits_for(found("GG101", file, 2)) == ()


def test_a_call_that_clears_too_early_is_moved_behind_the_step(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    lines = ["for x in data:", "    loss(x).backward()", "    opt.zero_grad()", "    opt.step()", "    log()"]
    file.write_text("\n".join(lines) + "\n")
    edits = edits_for(found("GG202", file, 3))
    assert apply(lines, edits) == [lines[0], lines[1], lines[3], lines[2], lines[4]]


def test_what_cannot_be_read_has_no_mending(tmp_path: Path) -> None:
    assert edits_for(found("GG101", tmp_path / "gone.py", 3)) == ()


ONCE_MORE = "Leave the division out, or sum first: reduction='sum'."
CUT = "Take the value with its graph: without detach, item, numpy, no_grad or a new tensor around it."
LIST = "Hand optimizer all that is to be trained."
MISSING = (
    "No step moved head.weight and head.bias, in no optimizer's list, though 8 backward calls reached them."
)
KEPT = "Keep the number or the values alone: loss.item(), or output.detach()."

FIXES = (
    "Step once more for what is left",
    "Divide by the number of micro-batches in the window",
    "(loss * mask).sum() / mask.sum()",
    "Keep one of them: weight_decay=0 here",
    "Pass create_graph=True",
    "Update in place",
    "Run it under torch.no_grad()",
    "Put the layers into an nn.ModuleList",
    "List each parameter once",
    "Pass model.parameters() anew",
    "Make it once, before the loop",
    "Call scheduler.step() once an epoch",
    "Move scheduler.step()",
    "Write scaler.step(optimizer)",
    "Call scaler.unscale_",
    "Set their gradients to None when they are frozen",
)


@pytest.mark.parametrize(
    ("code", "fix", "message", "before", "after"),
    [
        ("GG104", ONCE_MORE, "", "loss = a - (b + c) / n", "loss = a - (b + c)"),
        ("GG104", ONCE_MORE, "", "größe = f('ä') / len(x)  # ö", "größe = f('ä')  # ö"),
        ("GG104", ONCE_MORE, "", "loss = a / b / c", None),  # which of the two?
        ("GG402", CUT, ".item() cuts", "loss = beta * (a + b).item()", "loss = beta * (a + b)"),
        ("GG402", CUT, ".detach() cuts", "h = f(x).detach() + g(x).detach()", None),
        ("GG402", CUT, ".detach() cuts", "h = f(x).detach().numpy()", None),
        ("GG403", "Let a gradient through", "", "w = f('//') * (step // n)", "w = f('//') * (step / n)"),
        ("GG501", LIST, MISSING, "head = o = SGD(body.parameters())", None),  # is not there yet
        ("GG501", LIST, MISSING, "head = 1; o = SGD(groups(body), lr=1)", None),  # may be groups
        ("GG601", KEPT, "", "seen.append(loss)", "seen.append(loss.detach())"),
        ("GG601", KEPT, "", "out, h = rnn(x, h)", None),  # a tuple cannot be detached
        ("GG601", KEPT, "", "h = rnn(x, h)", None),
        ("GG601", KEPT, "", "seen += [loss]", None),
        (
            "GG304",
            "Update in place, under torch.no_grad(): p -= lr * p.grad.",
            "",
            "p = p - lr * p.grad",
            None,
        ),
        ("GG405", "Run it under torch.no_grad()", "", "q = net(x); loss = q.sum()", None),
    ],
)
def test_an_expression_is_rewritten_where_there_is_one_way(
    code: str, fix: str, message: str, before: str, after: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(before + "\n", "utf-8")
    edits = edits_for(found(code, file, 1, fix, message))
    assert apply([before], edits) == [before if after is None else after]
    assert bool(edits) == (after is not None)


def test_lists_of_parameters_and_of_groups_are_added_to_alike(tmp_path: Path) -> None:
    given_and_expected = {
        "body.parameters()": "[*body.parameters(), *head.parameters()]",
        "list(a.parameters()) + list(b.parameters())": (
            "[*list(a.parameters()) + list(b.parameters()), *head.parameters()]"
        ),
        '[{"params": body.parameters(), "lr": 1}]': (
            '[{"params": body.parameters(), "lr": 1}, {"params": head.parameters()}]'
        ),
    }
    for number, (given, expected) in enumerate(given_and_expected.items()):
        file = tmp_path / f"train_{number}.py"
        lines = ["head = make(); head(x)", f"o = SGD({given}, lr=0.1)"]
        file.write_text("\n".join(lines) + "\n")
        edits = edits_for(found("GG501", file, 2, LIST, MISSING))
        assert apply(lines, edits) == [lines[0], f"o = SGD({expected}, lr=0.1)"]


def test_a_line_can_be_moved_to_the_very_beginning(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    lines = ["for x in y:", "    o = SGD(w)", "    f(o)"]
    file.write_text("\n".join(lines) + "\n")
    edits = edits_for(found("GG504", file, 2, "Make it once, before the loop"))
    assert apply(lines, edits) == ["o = SGD(w)", "for x in y:", "    f(o)"]


def test_a_block_without_gradients_is_dissolved(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    lines = ["if x:", "    with torch.no_grad():", "        h = f(x,", "              y)", "    g(h)"]
    file.write_text("\n".join(lines) + "\n")
    edits = edits_for(found("GG402", file, 2, CUT, "Running without gradients cuts"))
    assert apply(lines, edits) == [lines[0], "    h = f(x,", "          y)", lines[4]]


def test_on_lines_that_a_finding_does_not_fit_nothing_breaks() -> None:
    fixes = {
        (rule.code, fix, MISSING)
        for rule in rules()
        for fix in (
            ONCE_MORE,
            CUT,
            LIST,
            KEPT,
            "Step after 4",
            "(loss / 4).backward()",
            "Give the probe",
            "",
            *FIXES,
        )
    }
    for script in WRONG[::40]:
        for line in range(1, len(script.read_text("utf-8").splitlines()) + 1, 5):
            for code, fix, message in fixes:
                edits_for(found(code, script, line, fix, message))


# Each breaks or means something else when mended by the letter: a line that is part of another, names that are not
# there, what runs between the two places, losses that share a value.
NOT_TO_BE_TOUCHED = {
    "a body on the line of its if": (
        "GG201",
        "Call o.zero_grad() before",
        "",
        2,
        "loss.backward()\nif c: o.step()\n",
    ),
    "a step in a body of one line": (
        "GG301",
        "Call scheduler.step() only where",
        "",
        3,
        "for x in y:\n    if c: o.step()\n    s.step()\n",
    ),
    "torch by another name": (
        "GG405",
        "Run it under torch.no_grad()",
        " for net.w, which ",
        2,
        "import torch as th\nq = net(x)\n",
    ),
    "more than the network on the line": (
        "GG405",
        "Run it under torch.no_grad()",
        " for net.w, which ",
        2,
        "import torch\nloss = f(own(x), net(x))\n",
    ),
    "a loop over what has no length": (
        "GG101",
        "",
        "",
        4,
        "def g():\n    yield 1\nfor i, x in enumerate(data):\n    if i % 4 == 0:\n        o.step()\n",
    ),
    "a norm that is read on the way": (
        "GG302",
        "Clip between",
        "",
        1,
        "n = clip_grad_norm_(p)\nprint(n)\nloss.backward()\no.step()\n",
    ),
    "two steps to clip for": (
        "GG302",
        "Clip between",
        "",
        4,
        "a.backward()\no.step()\nb.backward()\nclip_grad_norm_(p)\nq.step()\nr.step()\n",
    ),
    "a value in two losses": (
        "GG203",
        "Clear",
        "left in G.w",
        2,
        "fake = G(z)\nd = D(fake)\na = f(d)\nb = g(d)\n",
    ),
    "another backward on the way": (
        "GG203",
        "Clear",
        "beside that of line 1.",
        4,
        "a.backward()\no.step()\nb.backward()\no.zero_grad()\nq.step()\n",
    ),
    "clearing before its own loss": (
        "GG202",
        "",
        "",
        3,
        "a.backward()\np.step()\no.zero_grad()\nb.backward()\no.step()\n",
    ),
    "a schedule in the only loop": (
        "GG301",
        "Call scheduler.step() once an epoch",
        "",
        3,
        "for x in y:\n    o.step()\n    s.step()\n",
    ),
    "an early return": (
        "GG602",
        "Call model.train()",
        "",
        2,
        "def e(m):\n    m.eval()\n    if c:\n        return 1\n    f(m)\n    return 2\n",
    ),
    "thawing as well": (
        "GG505",
        "Set their gradients to None when they are frozen",
        "",
        1,
        "p.requires_grad = flag\nf()\n",
    ),
    "two values without gradients": (
        "GG402",
        CUT,
        "Running without",
        2,
        "import torch\nwith torch.no_grad():\n    h = f(x)\n    t = g(x)\n",
    ),
    "a number out of math": ("GG402", CUT, ".item() cuts", 1, "b = math.exp(v.mean().item())\n"),
    "an index": ("GG403", "Let a gradient through", "", 1, "h = x[:, : n // 2]\n"),
    "carried on within the pass": (
        "GG601",
        KEPT,
        "",
        2,
        "def forward(self, x):\n    self.m = 0.9 * self.m + x\n    return self.m\n",
    ),
    "what need not be a tensor": ("GG601", KEPT, "", 1, "seen.append(out)\n"),
    "functions among layers": (
        "GG501",
        "Put the layers into an nn.ModuleList",
        "",
        2,
        "from torch import nn\nlayers = [nn.Linear(2, 2), relu]\n",
    ),
    "groups beside parameters": ("GG501", LIST, MISSING, 3, "head = f()\nhead(x)\no = SGD([g1, g2], lr=1)\n"),
    "an optimizer that a function uses": (
        "GG502",
        "Make",
        "were made after o, which",
        5,
        "def fit():\n    o.step()\no = SGD(net.parameters())\nfit()\nnet.fc = nn.Linear(2, 2)\n",
    ),
    "a rate that the loop changes": (
        "GG504",
        "Make it once, before the loop",
        "",
        2,
        "for e in range(3):\n    o = SGD(p, lr=c.lr)\n    c.lr *= 0.5\n",
    ),
    "a schedule made of it each time": (
        "GG504",
        "Make it once, before the loop",
        "",
        2,
        "for e in range(3):\n    o = SGD(p)\n    s = StepLR(o, 3)\n",
    ),
}


@pytest.mark.parametrize("case", NOT_TO_BE_TOUCHED)
def test_nothing_is_offered_that_would_break_or_mean_something_else(case: str, tmp_path: Path) -> None:
    code, fix, message, line, text = NOT_TO_BE_TOUCHED[case]
    file = tmp_path / "train.py"
    file.write_text(text, "utf-8")
    assert edits_for(found(code, file, line, fix, message)) == ()
