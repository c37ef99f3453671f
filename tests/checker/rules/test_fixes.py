"""A mending mends: with its edits made, a wrong script of the corpus runs, and its mistake is found no more."""

import linecache
import sys
from functools import partial
from pathlib import Path

import pytest

from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import apply, edits_for
from gradgate.checker.rules import Finding, rules
from gradgate.checker.rules._rule import FixAt
from gradgate.checker.rules.accumulation import _accumulation_scaling, _accumulation_window, _loss_reduction
from gradgate.checker.rules.clearing import _cross_loss_leak, _missing_zero_grad, _zero_grad_misplaced
from gradgate.checker.rules.stepping import _clip_misplaced, _ineffective_step, _scheduler_cadence
from gradgate.events import Frame
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
    "scheduler-cadence": 9,
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


def fixed(fix: FixAt, line: int, text: str, folder: Path) -> str | None:
    """Return what a rule's fix makes of a script; None where no edit is offered."""
    file = folder / "train.py"
    file.write_text(text, "utf-8")
    linecache.checkcache(str(file))
    at = Statement.at(Frame(str(file), line, ""))
    assert at is not None
    finding = Finding("GG000", "", "error", str(file), line, "", "", "", fix=fix(at))
    edits = edits_for(finding)
    return "\n".join(apply(text.splitlines(), edits)) + "\n" if edits else None


COUNTED = "for i, x in enumerate(loader):\n    if {}:  # now\n        optimizer.step()\n"


@pytest.mark.parametrize(
    ("fix", "line", "before", "after"),
    [
        (
            _accumulation_window._count_from_one,
            2,
            COUNTED.format("i % N == 0"),
            COUNTED.format("(i + 1) % N == 0 or i + 1 == len(loader)"),
        ),
        (_accumulation_window._at_least, 1, "if n > N: f()\ng()\n", None),
        (_accumulation_window._at_least, 1, "if n > N:\n    f()\n", "if n >= N:\n    f()\n"),
        (_loss_reduction._undivided, 1, "loss = a - (b + c) / n\n", "loss = a - (b + c)\n"),
        (_loss_reduction._undivided, 1, "größe = f('ä') / len(x)  # ö\n", "größe = f('ä')  # ö\n"),
        (
            _loss_reduction._mean_of_mask,
            1,
            "loss = a + (nll * mask).mean()\n",
            "loss = a + ((nll * mask).sum() / mask.sum())\n",
        ),
        (
            partial(_accumulation_scaling._divided_by, size=4),
            1,
            "loss = (a + b) / n\n",
            "loss = (a + b) / 4\n",
        ),
        (
            partial(_zero_grad_misplaced._after_the_step, always=True),
            3,
            "for x in y:\n    loss(x).backward()\n    o.zero_grad()\n    o.step()\n    log()\n",
            "for x in y:\n    loss(x).backward()\n    o.step()\n    o.zero_grad()\n    log()\n",
        ),
        (
            _ineffective_step._in_place,
            2,
            "with torch.no_grad():\n    p = p - lr * p.grad\n",
            "with torch.no_grad():\n    p -= lr * p.grad\n",
        ),
    ],
)
def test_a_rule_changes_the_lines_where_there_is_one_way(
    fix: FixAt, line: int, before: str, after: str | None, tmp_path: Path
) -> None:
    assert fixed(fix, line, before, tmp_path) == after


# Each would break or mean something else if the fix were made.
UNCLEAR = {
    "which of the two divisions": (_loss_reduction._undivided, 1, "loss = a / b / c\n"),
    "outside of no_grad": (_ineffective_step._in_place, 1, "p = p - lr * p.grad\n"),
    "a counter from 1": (
        _accumulation_window._count_from_one,
        2,
        COUNTED.format("i % N == 0").replace("loader)", "loader, 1)"),
    ),
    "a loop without a length": (
        _accumulation_window._count_from_one,
        2,
        COUNTED.format("i % N == 0").replace("loader", "make()"),
    ),
    "a loop without a counter": (
        _accumulation_window._count_from_one,
        2,
        "for x in loader:\n    if i % N == 0:\n        optimizer.step()\n",
    ),
    "another counter": (_accumulation_window._count_from_one, 2, COUNTED.format("j % N == 0")),
    "a further condition": (_accumulation_window._count_from_one, 2, COUNTED.format("i % N == 0 and x")),
    "a loop over a generator": (
        _accumulation_window._count_from_one,
        4,
        "def g():\n    yield 1\nfor i, x in enumerate(data):\n    if i % 4 == 0:\n        o.step()\n",
    ),
    "a body on the line of its if": (
        partial(_missing_zero_grad._cleared, name="o"),
        2,
        "loss.backward()\nif c: o.step()\n",
    ),
    "a step in a body of one line": (
        _scheduler_cadence._after_step,
        3,
        "for x in y:\n    if c: o.step()\n    s.step()\n",
    ),
    "a schedule in the only loop": (
        _scheduler_cadence._after_epoch,
        3,
        "for x in y:\n    o.step()\n    s.step()\n",
    ),
    "a norm that is read on the way": (
        _clip_misplaced._before_the_step,
        1,
        "n = clip_grad_norm_(p)\nprint(n)\nloss.backward()\no.step()\n",
    ),
    "two steps to clip for": (
        _clip_misplaced._before_the_step,
        4,
        "a.backward()\no.step()\nb.backward()\nclip_grad_norm_(p)\nq.step()\nr.step()\n",
    ),
    "a value in two losses": (
        partial(_cross_loss_leak._apart, own=9, left="G.w"),
        2,
        "fake = G(z)\nd = D(fake)\na = f(d)\nb = g(d)\n",
    ),
    "another backward on the way": (
        partial(_cross_loss_leak._apart, own=1, left="G.w"),
        4,
        "a.backward()\no.step()\nb.backward()\no.zero_grad()\nq.step()\n",
    ),
    "clearing before its own loss": (
        partial(_zero_grad_misplaced._after_the_step, always=True),
        3,
        "a.backward()\np.step()\no.zero_grad()\nb.backward()\no.step()\n",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_a_rule_offers_no_edit_that_would_break_or_mean_something_else(case: str, tmp_path: Path) -> None:
    fix, line, text = UNCLEAR[case]
    assert fixed(fix, line, text, tmp_path) is None


def test_what_cannot_be_read_has_no_mending(tmp_path: Path) -> None:
    assert edits_for(found("GG101", tmp_path / "gone.py", 3)) == ()


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
