"""A schedule's length in epochs or in batches, where batches come from a list, a range or a generator."""

import linecache

import pytest

from gradgate.checker.fixes import apply, edits_for
from tests.checker.rules._watched import findings_of, variables_of

SCRIPT = """
import torch
from torch import nn
from torch.optim.lr_scheduler import *

torch.manual_seed(0)
EPOCHS, BATCH = 6, 32
X, Y = torch.randn(128, 4), torch.randn(128, 1)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
pairs = list(zip(X.split(BATCH), Y.split(BATCH)))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), BATCH)


def shuffled():
    for i in torch.randperm(len(X)).split(BATCH):
        yield X[i], Y[i]


sched = SCHEDULE
rates = []
for epoch in range(EPOCHS):
    for x, y in BATCHES:
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        rates.append(sched.get_last_lr()[0])
        opt.step()
ADVANCED
"""
IN_A_FUNCTION = (
    SCRIPT.partition("sched = ")[0]
    + """
sched, rates = SCHEDULE, []


def train_one_epoch(batches):
    for x, y in batches:
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        rates.append(sched.get_last_lr()[0])
        opt.step()
    ADVANCED


for _ in range(1, EPOCHS + 1):
    train_one_epoch(BATCHES)
"""
)
SOURCES = [
    "pairs",
    "(pairs[i] for i in range(len(pairs)))",
    "shuffled()",
    "zip(X.split(16), Y.split(16))",
    "data",
]
IN_EPOCHS = [
    "CosineAnnealingLR(opt, T_max=EPOCHS)",
    "LinearLR(opt, 1.0, 0.01, total_iters=EPOCHS)",
    "PolynomialLR(opt, EPOCHS)",
    "LambdaLR(opt, lambda n: max(0.05, 1 - n / EPOCHS))",
    "SequentialLR(opt, [ConstantLR(opt, 0.5, 2), CosineAnnealingLR(opt, EPOCHS - 2)], [2])",
]
IN_BATCHES = [
    "CosineAnnealingLR(opt, T_max=EPOCHS * len(pairs))",
    "OneCycleLR(opt, 0.1, epochs=EPOCHS, steps_per_epoch=len(pairs))",
]
RIGHT_IN_BATCHES = [
    *IN_BATCHES,
    "LambdaLR(opt, lambda n: 1 - n / (EPOCHS * len(pairs)))",
    "LambdaLR(opt, lambda n: min(1, (n + 1) / 6))",  # a warm-up of as many batches as there are epochs
    "CosineAnnealingLR(opt, T_max=len(pairs))",  # up and down, an epoch each
    "CosineAnnealingLR(opt, T_max=1000)",
    "CosineAnnealingWarmRestarts(opt, EPOCHS)",
    "LinearLR(opt, 0.1, 1.0, total_iters=EPOCHS)",
    "StepLR(opt, 24, 0.5)",
]


def script(schedule: str, batches: str, *, each_batch: bool, text: str = SCRIPT) -> str:
    advanced = ("    " * (2 if each_batch else 1)) + "sched.step()"
    if text is IN_A_FUNCTION:
        advanced = "    sched.step()" if each_batch else "pass"
        text = text if each_batch else text + "    sched.step()\n"
    return text.replace("SCHEDULE", schedule).replace("BATCHES", batches).replace("ADVANCED", advanced)


@pytest.mark.parametrize("text", [SCRIPT, IN_A_FUNCTION], ids=["in one", "in a function"])
@pytest.mark.parametrize(
    ("schedule", "batches", "each_batch"),
    [
        *((schedule, batches, True) for schedule in IN_EPOCHS[:1] for batches in SOURCES),
        *((schedule, "pairs", True) for schedule in IN_EPOCHS[1:]),
        *((schedule, "pairs", False) for schedule in IN_BATCHES),
    ],
)
def test_the_wrong_unit_is_found_and_the_edit_gives_the_rates_of_the_right_loop(
    schedule: str, batches: str, each_batch: bool, text: str
) -> None:
    wrong, right = (
        script(schedule, batches, each_batch=each, text=text) for each in (each_batch, not each_batch)
    )
    assert findings_of(right) == []
    (found,) = findings_of(wrong)
    assert (found.code, wrong.splitlines()[found.line - 1].strip()) == ("GG301", "sched.step()")
    linecache.cache[found.file] = (len(wrong), None, wrong.splitlines(keepends=True), found.file)
    fixed = "\n".join(apply(wrong.splitlines(), edits_for(found))) + "\n"
    if text is SCRIPT:
        assert fixed != wrong
    if fixed != wrong:
        assert variables_of(fixed)["rates"] == variables_of(right)["rates"]


@pytest.mark.parametrize("batches", SOURCES[:3])
@pytest.mark.parametrize("schedule", RIGHT_IN_BATCHES)
def test_a_length_in_batches_is_right(schedule: str, batches: str) -> None:
    assert findings_of(script(schedule, batches, each_batch=True)) == []


def test_a_loader_of_as_many_batches_as_there_are_epochs_is_no_proof() -> None:
    text = script("CosineAnnealingLR(opt, T_max=len(data))", "data", each_batch=True)
    assert findings_of(text.replace("EPOCHS, BATCH = 6,", "EPOCHS, BATCH = 8,")) == []
