"""Fixes of what cuts or keeps graphs, and of what optimizers and modes are given."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

# private: each fix makes its edit at any statement that it fits, and none elsewhere
from gradgate.checker.rules._rule import FixAt
from gradgate.checker.rules.flow import _graph_fixes, _in_no_optimizer, _nonfinite_gradient, _zero_gradient
from gradgate.checker.rules.lifetime import _graph_retention, _needless_retains, _train_eval_mode
from gradgate.checker.rules.ownership import (
    _batch_norms,
    _frozen_state_drift,
    _optimizer_state_reset,
    _param_in_multiple_optimizers,
    _parameter_fixes,
    _stale_optimizer_params,
)
from tests.checker.rules.test_fixes import fixed

with_item = partial(_graph_fixes.without_cut, ops=("item",))
with_detach = partial(_graph_fixes.without_cut, ops=("detach",))
apart = partial(
    _graph_fixes.unless_compared,
    ops=("detach", "data"),
    modules={"head"},
    fix=partial(_graph_fixes.without_cut, ops=("detach", "data")),
)
alone = partial(_graph_fixes.unless_shared, fix=with_detach)
with_head = partial(_parameter_fixes.added, names=["head.weight", "head.bias"])
quiet_net = partial(_in_no_optimizer._under_no_grad, names={"net", "w"})
evaluated = partial(_batch_norms._evaluated, parts=["model.body[1]", "model.norm"])
after_the_head = partial(_stale_optimizer_params._fix, names=["net.fc.weight"], optimizer="o")


@pytest.mark.parametrize(
    ("fix", "line", "before", "after"),
    [
        (with_item, 1, "loss = beta * (a + b).item()\n", "loss = beta * (a + b)\n"),
        (with_item, 1, "f(a + b.item(), b.item())\n", None),  # which of the two?
        (with_item, 1, "v = torch.tensor([a.item(), 2 * b.item()])\n", "v = torch.stack([a, 2 * b])\n"),
        (with_item, 1, "v = torch.tensor([a.item() for a in b])\n", "v = torch.stack([a for a in b])\n"),
        (with_item, 1, "v = 3 * torch.tensor((a + b).item())\n", "v = 3 * (a + b)\n"),
        (with_item, 1, "v = torch.from_numpy(np.array([a.item() for a in b]))\n", None),
        (
            with_item,
            1,
            "v = [a.item() for a in b]\nw = torch.tensor(v)\n",
            "v = [a for a in b]\nw = torch.stack(v)\n",
        ),
        (with_item, 1, "v = [a.item() for a in b]\nprint(sum(v))\nw = torch.tensor(v)\n", None),
        (with_detach, 1, "q = f(s, g(s).detach().requires_grad_(True))\n", "q = f(s, g(s))\n"),
        (apart, 1, "h = enc(x).detach()\ny = head(h + 1)\n", "h = enc(x)\ny = head(h + 1)\n"),
        (apart, 1, "h = x + f(x).detach()\nh += 1\nz = -head(h)\n", "h = x + f(x)\nh += 1\nz = -head(h)\n"),
        (
            apart,
            2,
            "import torch\ny = torch.cat([a, f(x).detach()])\ny = head(y, z)\n",
            "import torch\ny = torch.cat([a, f(x)])\ny = head(y, z)\n",
        ),
        (
            alone,
            1,
            "t = f(x).detach()\nl = a + t\nprint(t.item())\n",
            "t = f(x)\nl = a + t\nprint(t.item())\n",
        ),
        (_graph_fixes.with_graph, 1, "g = grad(s, x)[0]\n", "g = grad(s, x, create_graph=True)[0]\n"),
        (
            _graph_fixes.with_graph,
            1,
            "g = grad(s, x, retain_graph=True)[0]\n",
            "g = grad(s, x, create_graph=True)[0]\n",
        ),
        (
            _graph_fixes.without_leaf,
            2,
            "import torch; losses = [f(x) for x in y]\nloss = torch.tensor(losses, requires_grad=True).mean()\n",
            "import torch; losses = [f(x) for x in y]\nloss = torch.stack(losses).mean()\n",
        ),
        (_zero_gradient.not_rounded, 1, "w = f('//') * (step // n)\n", "w = f('//') * (step / n)\n"),
        (
            _nonfinite_gradient._clamped,
            1,
            "e = -p * (p + q).log()\n",
            "e = -p * (p + q).clamp(min=1e-8).log()\n",
        ),
        (_nonfinite_gradient._clamped, 1, "d = torch.sqrt(x)\n", "d = torch.sqrt(x.clamp(min=1e-8))\n"),
        (
            quiet_net,
            2,
            "import torch\nq = net(x).max(1).values\n",
            "import torch\nwith torch.no_grad():\n    q = net(x).max(1).values\n",
        ),
        (
            with_head,
            2,
            "head = make(); head(x)\no = SGD(body.parameters(), lr=1)\n",
            "head = make(); head(x)\no = SGD([*body.parameters(), *head.parameters()], lr=1)\n",
        ),
        (
            with_head,
            2,
            "head = make(); head(x)\no = SGD(list(a.parameters()) + list(b.parameters()))\n",
            "head = make(); head(x)\no = SGD([*list(a.parameters()) + list(b.parameters()), *head.parameters()])\n",
        ),
        (
            with_head,
            2,
            'head = make(); head(x)\no = SGD([{"params": body.parameters(), "lr": 1}])\n',
            'head = make(); head(x)\no = SGD([{"params": body.parameters(), "lr": 1}, '
            '{"params": head.parameters()}])\n',
        ),
        (
            _parameter_fixes.in_module_list,
            2,
            "from torch import nn\nlayers = [nn.Linear(2, 2) for _ in range(3)]\n",
            "from torch import nn\nlayers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])\n",
        ),
        (
            after_the_head,
            2,
            "o = SGD(net.parameters())\nnet.fc = Linear(2, 2)\no.step()\n",
            "net.fc = Linear(2, 2)\no = SGD(net.parameters())\no.step()\n",
        ),
        (
            partial(_stale_optimizer_params._fix, names=["net.w"], optimizer="o"),
            2,
            "import copy\nnet = copy.deepcopy(best)\n",
            "import copy\nnet.load_state_dict(best.state_dict())\n",
        ),
        (
            _param_in_multiple_optimizers._listed_once,
            1,
            "params = list(a.parameters()) + list(b.parameters())\n",
            "params = list(dict.fromkeys(list(a.parameters()) + list(b.parameters())))\n",
        ),
        (
            _optimizer_state_reset._made_once,
            2,
            "for x in y:\n    o = SGD(w)\n    f(o)\n",
            "o = SGD(w)\nfor x in y:\n    f(o)\n",
        ),
        (
            partial(_frozen_state_drift._without_gradients, names={"net.body.weight"}),
            1,
            "net.body.requires_grad_(False)\n",
            "net.body.requires_grad_(False)\nnet.body.zero_grad()\n",
        ),
        (_frozen_state_drift._none_instead, 2, "p = w\np.grad.zero_()\n", "p = w\np.grad = None\n"),
        (
            evaluated,
            1,
            "model.train()\n",
            "model.train()\nmodel.body[1].eval()\nmodel.norm.eval()\n",
        ),
        (_graph_retention._detached, 1, "seen.append(loss)\n", "seen.append(loss.detach())\n"),
        (
            _needless_retains._without_retaining,
            1,
            "loss.backward(retain_graph=True)\n",
            "loss.backward()\n",
        ),
        (
            _train_eval_mode._back_in_training,
            3,
            "for e in range(3):\n    train(m)\n    m.eval()\n",
            "for e in range(3):\n    m.train()\n    train(m)\n    m.eval()\n",
        ),
        (
            _train_eval_mode._back_in_training,
            2,
            "def e(m):\n    m.eval()\n    for x in d:\n        f(x)\n    return n\n",
            "def e(m):\n    was_training = m.training\n    m.eval()\n    for x in d:\n        f(x)\n"
            "    m.train(was_training)\n    return n\n",
        ),
        (
            _train_eval_mode._told_the_mode,
            2,
            "def forward(self, x):\n    return F.dropout(x, 0.1)\n",
            "def forward(self, x):\n    return F.dropout(x, 0.1, training=self.training)\n",
        ),
    ],
)
def test_a_rule_changes_the_lines_where_there_is_one_way(
    fix: FixAt, line: int, before: str, after: str | None, tmp_path: Path
) -> None:
    assert fixed(fix, line, before, tmp_path) == after


UNCLEAR = {
    "two cuts": (with_detach, 1, "h = f(x).detach() + g(x).detach()\n"),
    "an array": (with_detach, 1, "h = f(x).detach().numpy()\n"),
    "a method without gradients": (with_detach, 1, "@torch.no_grad()\ndef f(x):\n    return x\n"),
    "one value without gradients": (
        with_detach,
        2,
        "import torch\nwith torch.no_grad():\n    h = f(x)\n",
    ),
    "the target of a function": (apart, 1, "l = D(p, f(x).detach())\n"),
    "a target by its name": (apart, 1, "t = f(x).detach()\nt = t / 2\nl = D(p, t)\n"),
    "a target of a product": (apart, 1, "l = (p * f(x).data).sum()\n"),
    "a target of a method": (apart, 1, "l = p.sub(f(x).detach())\n"),
    "a target that is returned": (apart, 1, "def g(x):\n    return f(x).detach()\n"),
    "a target that another term uses": (alone, 1, "t = f(x).detach()\nl = D(p, t) + t.std()\n"),
    "a number out of math": (with_item, 1, "b = math.exp(v.mean().item())\n"),
    "two values without gradients": (
        with_detach,
        2,
        "import torch\nwith torch.no_grad():\n    h = f(x)\n    t = g(x)\n",
    ),
    "an index": (_zero_gradient.not_rounded, 1, "h = x[:, : n // 2]\n"),
    "several statements on the line": (quiet_net, 1, "q = net(x); loss = q.sum()\n"),
    "torch by another name": (quiet_net, 2, "import torch as th\nq = net(x)\n"),
    "more than the network on the line": (quiet_net, 2, "import torch\nloss = f(own(x), net(x))\n"),
    "a head that is not there yet": (with_head, 1, "head = o = SGD(body.parameters())\n"),
    "what may be groups": (with_head, 1, "head = 1; o = SGD(groups(body), lr=1)\n"),
    "groups beside parameters": (with_head, 3, "head = f()\nhead(x)\no = SGD([g1, g2], lr=1)\n"),
    "functions among layers": (
        _parameter_fixes.in_module_list,
        2,
        "from torch import nn\nlayers = [nn.Linear(2, 2), relu]\n",
    ),
    "an optimizer that a function uses": (
        after_the_head,
        5,
        "def fit():\n    o.step()\no = SGD(net.parameters())\nfit()\nnet.fc = nn.Linear(2, 2)\n",
    ),
    "a rate that the loop changes": (
        _optimizer_state_reset._made_once,
        2,
        "for e in range(3):\n    o = SGD(p, lr=c.lr)\n    c.lr *= 0.5\n",
    ),
    "a schedule made of it each time": (
        _optimizer_state_reset._made_once,
        2,
        "for e in range(3):\n    o = SGD(p)\n    s = StepLR(o, 3)\n",
    ),
    "thawing as well": (
        partial(_frozen_state_drift._without_gradients, names={"p"}),
        1,
        "p.requires_grad = flag\nf()\n",
    ),
    "a tuple": (_graph_retention._detached, 1, "out, h = rnn(x, h)\n"),
    "the output of a cell": (_graph_retention._detached, 1, "h = rnn(x, h)\n"),
    "a list": (_graph_retention._detached, 1, "seen += [loss]\n"),
    "what need not be a tensor": (_graph_retention._detached, 1, "seen.append(out)\n"),
    "carried on within the pass": (
        _graph_retention._detached,
        2,
        "def forward(self, x):\n    self.m = 0.9 * self.m + x\n    return self.m\n",
    ),
    "a function that only sets the mode": (
        _train_eval_mode._back_in_training,
        2,
        "def e(m):\n    m.eval()\n    return m\n",
    ),
    "an early return": (
        _train_eval_mode._back_in_training,
        2,
        "def e(m):\n    m.eval()\n    if c:\n        return 1\n    f(m)\n    return 2\n",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_a_rule_offers_no_edit_that_would_break_or_mean_something_else(case: str, tmp_path: Path) -> None:
    fix, line, text = UNCLEAR[case]
    assert fixed(fix, line, text, tmp_path) is None
