"""``gradgate plan``: what it prints is what ``gg.plan`` says of the same loss function and batch."""

import subprocess
from pathlib import Path

import pytest

from tests.interpreter import python

MLP = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,)))
loader = torch.utils.data.DataLoader(data, batch_size=512)
"""
MLP_LOOP = """\
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print("stepped")
"""
MLP_CALL = """\
def loss_fn(batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
x, y = next(iter(loader))
batch = {"x": x, "y": y}
"""

CNN = """\
import torch
from torch import nn

class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.seen, self.device = 0, "cpu"
"""
CNN_LOOP = """\
    def train_step(self, images, labels):
        images, labels = images.to(self.device), labels.to(self.device)
        predictions = self.net(images)
        self.seen += len(labels)
        print("correct", (predictions.argmax(1) == labels).sum().item())
        loss = self.criterion(predictions, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

trainer = Trainer()
for epoch in range(2):
    for _ in range(3):
        trainer.train_step(torch.randn(48, 3, 32, 32), torch.randint(10, (48,)))
"""
CNN_CALL = """\
trainer = Trainer()
optimizer = trainer.optimizer
def loss_fn(batch):
    return trainer.criterion(trainer.net(batch["images"]), batch["labels"])
batch = {"images": torch.randn(48, 3, 32, 32), "labels": torch.randint(10, (48,))}
"""

TRANSFORMER = """\
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, 100)

    def forward(self, input_ids):
        h = self.embedding(input_ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h)

ACCUMULATE = 4
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
TRANSFORMER_LOOP = """\
def main():
    scaler = torch.amp.GradScaler("cpu")
    for step in range(20):
        ids = torch.randint(100, (32, 17))
        batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch["input_ids"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        scaler.scale(loss / ACCUMULATE).backward()
        if (step + 1) % ACCUMULATE == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

main()
"""
TRANSFORMER_CALL = """\
def loss_fn(some):
    batch = some["batch"]
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch["input_ids"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    return loss / ACCUMULATE
ids = torch.randint(100, (32, 17))
batch = {"batch": {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}}
"""
PRINT = (
    "import gradgate as gg\nprint(gg.plan(loss_fn, batch, budget_bytes={budget!r}, optimizer=optimizer))\n"
)


def plan(folder: Path, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(script, "utf-8")
    return python("-m", "gradgate", "plan", *arguments, cwd=folder)


@pytest.mark.parametrize(
    ("setup", "loop", "call", "budget", "head"),
    [
        (
            MLP,
            MLP_LOOP,
            MLP_CALL,
            "1MiB",
            ["train.py:14", "train.py:12-13", "x [512, 64], y [512]", "512 samples"],
        ),
        (
            CNN,
            CNN_LOOP,
            CNN_CALL,
            "2 MB",
            ["train.py:22", "train.py:16-21", "images [48, 3, 32, 32], labels [48]", "48 samples"],
        ),
        (
            TRANSFORMER,
            TRANSFORMER_LOOP,
            TRANSFORMER_CALL,
            "2MiB",
            ["train.py:32", "train.py:27-30", "batch [32, 16] [32, 16]", "32 samples"],
        ),
    ],
    ids=["mlp", "cnn", "transformer"],
)
def test_the_plan_is_that_of_the_loss_function_written_by_hand(
    tmp_path: Path, setup: str, loop: str, call: str, budget: str, head: list[str]
) -> None:
    done = plan(tmp_path, setup + loop, "--budget", budget, "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    printed, _, shown = done.stdout.partition("stopped      ")
    assert "stepped" not in printed
    step, loss, batch, samples = head
    lines = shown.splitlines()
    assert lines[0] == f"before the first optimizer step, {step}"
    assert lines[1] == f"loss         {loss}"
    assert lines[2] == f"batch        {batch}"
    assert lines[3].startswith(f"whole batch  {samples} at once would take ")
    alone = python("-c", setup + call + PRINT.format(budget=budget), cwd=tmp_path)
    assert alone.stderr == ""
    assert lines[5:] == alone.stdout.splitlines()
    assert f"{samples} in 1 micro-batch" not in done.stdout  # the budget splits it


AUTOCAST = """\
for x, y in loader:
    with torch.autocast("cpu", torch.bfloat16):  # left before the step, and part of the pass
        loss = F.cross_entropy(model(x), y)
        if not loss.isfinite():
            continue
        loss.backward()
    optimizer.step()
"""
AUTOCAST_CALL = """\
def loss_fn(batch):
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(batch[0]), batch[1])
"""
SHARED = """\
weight = torch.rand(10)
for x, y in loader:
    F.cross_entropy(model(x), y, weight).backward()
    optimizer.step()
"""
SHARED_CALL = """\
weight = torch.rand(10)
def loss_fn(batch):
    return F.cross_entropy(model(batch[0]), batch[1], weight)
"""
KEYWORDS = """\
for x, y in loader:
    batch = {"input": x}
    F.cross_entropy(model(**batch), y).backward()
    optimizer.step()
"""
KEYWORDS_CALL = """\
def loss_fn(batch):
    return F.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.mark.parametrize(
    ("loop", "call"),
    [(AUTOCAST, AUTOCAST_CALL), (SHARED, SHARED_CALL), (KEYWORDS, KEYWORDS_CALL)],
    ids=["autocast", "shared", "keywords"],
)
def test_a_loop_is_read_as_it_is_meant(tmp_path: Path, loop: str, call: str) -> None:
    done = plan(tmp_path, MLP + loop, "--budget", "1MiB", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    by_hand = f"{MLP}{call}batch = next(iter(loader))\n{PRINT.format(budget='1MiB')}"
    assert done.stdout.splitlines()[5:] == python("-c", by_hand, cwd=tmp_path).stdout.splitlines()


def test_without_a_budget_it_is_what_is_free(tmp_path: Path) -> None:
    done = plan(tmp_path, MLP + MLP_LOOP, "train.py")
    assert done.returncode == 0
    assert "split        512 samples in 1 micro-batch: 512" in done.stdout


def test_nothing_is_stepped_and_nothing_behind_the_step_happens(tmp_path: Path) -> None:
    late = "    open('checkpoint.pt', 'w')\n"
    shown = "import atexit\natexit.register(lambda: print(float(model[0].weight.detach().double().sum())))\n"
    done = plan(tmp_path, f"{MLP}{shown}{MLP_LOOP}{late}", "train.py")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "checkpoint.pt").exists()
    alone = python("-c", f"{MLP}print(float(model[0].weight.detach().double().sum()))", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == alone.stdout.strip()


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (
            "for x, y in loader:\n    F.cross_entropy(model(x), y).backward()\n"
            "    model(x).square().mean().backward()\n    optimizer.step()",
            "the function that steps the optimizer calls backward several times",
        ),
        (
            "for i in range(3):\n    model(torch.randn(8, 64)).square().mean().backward()\n    optimizer.step()",
            "no variable holds the tensors from which the loss in line 11 is computed",
        ),
        (
            "x, y = next(iter(loader))\nh = model[:2](x)\nfor i in range(1):\n"
            "    loss = F.cross_entropy(model[2](h), y)\n    loss.backward()\n    optimizer.step()",
            "h comes from an earlier part of the graph",
        ),
        (
            "def train():\n    for x, y in loader:\n        for h in [x]:\n            if h is None:\n"
            "                return\n            h = model(h)\n        h.square().mean().backward()\n"
            "        optimizer.step()\ntrain()",
            "the statement in line 12 cannot be moved into a function",
        ),
        ("print('nothing')", "train.py made no step of a torch optimizer in this process"),
    ],
    ids=["two losses", "no batch", "half a graph", "returns", "no step"],
)
def test_what_cannot_be_told_is_said_with_the_call_to_write(tmp_path: Path, loop: str, why: str) -> None:
    done = plan(tmp_path, MLP + loop, "--budget", "1MiB", "train.py")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith(
        f"gradgate plan: cannot tell how the loss is computed from a batch: {why}.\n"
    )
    assert '\n    print(gg.plan(loss_fn, batch, budget_bytes="1MiB", optimizer=optimizer))\n' in done.stderr


def test_a_budget_that_is_too_small_or_unreadable_is_said(tmp_path: Path) -> None:
    small = plan(tmp_path, MLP + MLP_LOOP, "--budget", "1KiB", "train.py")
    assert small.returncode == 2
    assert "the budget is 1 KiB" in small.stderr
    assert "cannot tell" not in small.stderr
    unreadable = plan(tmp_path, "print('ran')", "--budget", "many", "train.py")
    assert (unreadable.returncode, unreadable.stdout) == (2, "")
    assert unreadable.stderr.startswith("gradgate plan: --budget is 'many'.")


def test_a_script_that_fails_before_its_first_step_keeps_its_exit_code(tmp_path: Path) -> None:
    done = plan(tmp_path, "import torch, sys\nsys.exit(3)", "train.py")
    assert done.returncode == 3
    assert done.stderr == "gradgate plan: train.py ended with exit code 3 before its first optimizer step.\n"
