"""Advice that was followed and did harm, as scripts: what is said and offered now, and that it trains as the twin.

A twin is the right script. It ends with the same parameters, to the bit, as the wrong one with its edits made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gradgate.checker.fixes import apply, edits_for
from tests.test_scripts import Outcome, run

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\ntorch.manual_seed(0)\n"

GAN = (
    HEAD
    + """
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3)
for it in range(8):
    real = torch.randn(16, 2) + 2
    fake = G(torch.randn(16, 4))
    opt_d.zero_grad()
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    g_loss = F.softplus(-D(fake)).mean()
    g_loss.backward()
    opt_g.step()
del d_loss, g_loss, fake
"""
)

WGAN_GP = (
    HEAD
    + """

def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    slope = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
    return (slope.norm(2, dim=1) - 1).square().mean()


def train():
    generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for i in range(12):
        real, z = torch.randn(16, 2) + 3, torch.randn(16, 8)
        opt_c.zero_grad()
        fake = generator(z)
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake.data)
        loss.backward()
        opt_c.step()
        opt_g.zero_grad()
        if i % 2 == 0:
            fake = generator(z)
            loss = -critic(fake).mean()
            loss.backward()
            opt_g.step()
    return generator, critic


models = train()
"""
)

PERCEPTUAL = (
    HEAD
    + """
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for it in range(6):
    sharp = torch.rand(4, 1, 8, 8)
    opt.zero_grad()
    made = net(sharp + 0.1 * torch.randn(4, 1, 8, 8))
    made_features = features(made)
    wanted = features(sharp)
    loss = F.l1_loss(made_features, wanted)
    loss.backward()
    opt.step()
del made, made_features, wanted, loss
"""
)

TEACHER = (
    HEAD
    + """
teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
opt = torch.optim.Adam([*student.parameters(), *teacher.parameters()], lr=1e-3)
for i in range(8):
    x = torch.randn(16, 6)
    with torch.no_grad():
        soft = F.softmax(teacher(x), dim=1)
    loss = F.kl_div(F.log_softmax(student(x), dim=1), soft, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)

VIEWS = (
    HEAD
    + """
encoder, projector, predictor = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)
def distance(p, z):
    return -(F.normalize(p, dim=1) * F.normalize(z, dim=1)).sum(1).mean()
opt = torch.optim.Adam([*encoder.parameters(), *projector.parameters(), *predictor.parameters()], lr=1e-3)
for i in range(8):
    x = torch.randn(16, 6)
    one, two = encoder(x), encoder(x + 0.1 * torch.randn(16, 6))
    first = projector(one).detach()
    second = projector(two).detach()
    loss = distance(predictor(one), second) + distance(predictor(two), first)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)

SPREAD = (
    HEAD
    + """
encoder, predictor = nn.Linear(6, 4), nn.Linear(4, 4)
opt = torch.optim.Adam([*encoder.parameters(), *predictor.parameters()], lr=1e-3)
for i in range(8):
    x = torch.randn(16, 6)
    target = encoder(x + 0.1).detach()
    loss = -(predictor(encoder(x)) * target).mean() + 0.1 * F.relu(1 - target.std(0)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)

OFF = (
    HEAD
    + """
encoder, predictor = nn.Linear(6, 4), nn.Linear(4, 4)
opt = torch.optim.Adam([*encoder.parameters(), *predictor.parameters()], lr=1e-3)
for i in range(8):
    x = torch.randn(16, 6)
    with torch.no_grad():
        second = -(predictor(encoder(x + 0.1)) * encoder(x)).mean()
    loss = -(predictor(encoder(x)) * encoder(x + 0.1).detach()).mean() + second
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
)

DEDENTED = (
    HEAD
    + """
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [torch.randn(8, 3) for _ in range(10)]
for epoch in range(4):
    for x in batches:
        opt.zero_grad()
        loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
    opt.step()
"""
)

FROM_ONE = (
    HEAD
    + """
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [torch.randn(8, 3) for _ in range(10)]
for epoch in range(3):
    for i, x in enumerate(batches, 1):
        loss = net(x).square().mean() / 4
        loss.backward()
        if i % 4 == 0:
            opt.step()
            opt.zero_grad()
    opt.zero_grad()
del loss
"""
)

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

WARM_UP = (
    HEAD
    + """
net = nn.Linear(3, 3)


def rate(step, warm_up=100):
    return 0.1 * min(1, (step + 1) // warm_up)


opt = torch.optim.SGD(net.parameters(), lr=rate(0))
for step in range(12):
    for group in opt.param_groups:
        group["lr"] = rate(step)
    opt.zero_grad()
    net(torch.randn(4, 3)).square().mean().backward()
    opt.step()
"""
)

ANGLES = (
    HEAD
    + """
net = nn.Linear(3, 3)
with torch.no_grad():
    net.weight.copy_(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
    net.bias.zero_()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(8, 3)
x[0] = torch.tensor([1.0, 0.0, 0.0])
for i in range(6):
    opt.zero_grad()
    cosine = (F.normalize(net(x), dim=1) * F.normalize(x, dim=1)).sum(1).clamp(-1, 1)
    angle = torch.acos(cosine)
    loss = angle.mean()
    loss.backward()
    opt.step()
"""
)

TOKENS = (
    HEAD
    + """
PAD = 0
net = nn.Embedding(9, 9)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randint(1, 9, (12, 10))
for row, length in enumerate([9, 2, 4, 7, 3, 10, 1, 5, 6, 2, 8, 3]):
    data[row, length:] = PAD
for i, y in enumerate(data):
    loss = F.cross_entropy(net(y), y, ignore_index=PAD)
    (loss / 4).backward()
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
del loss
"""
)

# The code, its line, what is said, the twin as replacements; no twin where no edit may be offered.
SEEN = {
    "a generator whose loss is cut": (
        GAN.replace("g_loss = F.softplus(-D(fake))", "g_loss = F.softplus(-D(fake.detach()))"),
        "GG402",
        "g_loss = ",
        "To train G, keep its output",
        [("g_loss = F.softplus(-D(fake.detach()))", "g_loss = F.softplus(-D(fake))")],
    ),
    "a teacher in the optimizer": (TEACHER, "GG402", "with torch.no_grad", "leave it out of opt", None),
    "a projector of targets only": (VIEWS, "GG402", "first = ", "leave it out of opt", None),
    "a target that also has a term": (SPREAD, "GG402", "target = ", "the value itself", None),
    "two sides under one no_grad": (OFF, "GG402", "with torch.no_grad", "Targets may stay inside", None),
    "a step behind its loop": (
        DEDENTED,
        "GG202",
        "opt.zero_grad()",
        "Step within the loop",
        [("\n    opt.step()", "\n        opt.step()")],
    ),
    "a counter from 1": (
        FROM_ONE,
        "GG101",
        "if i % 4",
        "`or i == len(batches)`",
        [("/ 4", "/ (2 if i > 8 else 4)"), ("if i % 4 == 0:", "if i in (4, 8, 10):")],
    ),
    "a frozen parameter of another name": (ALIAS, "GG505", "what.requires_grad_", "to None", None),
    "a warm-up that is rounded": (
        WARM_UP,
        "GG304",
        "return 0.1",
        "/ instead of //",
        [("(step + 1) // warm_up", "(step + 1) / warm_up")],
    ),
    "an angle of 0": (
        ANGLES,
        "GG404",
        "torch.acos",
        "within (-1, 1)",
        [(".clamp(-1, 1)", ".clamp(-1, 1).clamp(-1 + 1e-6, 1 - 1e-6)")],
    ),
    "tokens of unequal micro-batches": (
        TOKENS,
        "GG103",
        "(loss / 4)",
        "by all items",
        [
            ("(loss / 4).backward()", "(loss * (y != PAD).sum()).backward()"),
            (
                "        opt.step()",
                "        net.weight.grad /= (data[i - 3 : i + 1] != PAD).sum()\n        opt.step()",
            ),
        ],
    ),
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
