"""The edit that a finding offers in a trainer's run makes that run exact."""

import contextlib
import io
import runpy
from pathlib import Path

import pytest

from gradgate.checker.fixes import apply, edits_for
from gradgate.checker.recording import Watcher
from gradgate.checker.rules import Finding, check

pytestmark = [  # of Lightning
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging"),
]

ACCELERATE = """
import torch
from accelerate import Accelerator

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 4))
for epoch in range(3):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""

LIGHTNING = """
import lightning as L
import torch


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.linear(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    accumulate_grad_batches=2,
    KEYWORDS
)
trainer.fit(Model(), torch.utils.data.DataLoader(data, 4, num_workers=0))
"""

TRANSFORMERS = """
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def smoothed(outputs, labels, num_items_in_batch=None):
    logits, following = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits, following, label_smoothing=0.1)


torch.manual_seed(0)
rows = []
for length in (4, 9, 12, 5, 7, 11, 6, 10) * 4:
    ids = torch.randint(1, 20, (12,))
    rows.append({"input_ids": ids, "labels": ids.masked_fill(torch.arange(12) >= length, -100)})
model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=12, n_embd=8, n_layer=1, n_head=1))
arguments = TrainingArguments(
    output_dir="runs",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    max_steps=4,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=rows, compute_loss_func=smoothed)
trainer.train()
"""


def findings(script: Path) -> list[Finding]:
    watcher = Watcher(str(script), strict=True)
    watcher.start()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        watcher.stop()
    return check(watcher.log(), strict=True)


QUIET = "logger=False,\n    enable_checkpointing=False,\n    enable_progress_bar=False,"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (ACCELERATE, "exact(accelerator)"),
        (LIGHTNING.replace("KEYWORDS", QUIET), "    callbacks=[ExactAccumulation()],"),
    ],
    ids=["accelerate", "lightning"],
)
def test_the_edit_makes_the_run_exact(script: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(script, "utf-8")
    (found,) = findings(file)
    assert found.code == "GG103"
    edited = apply(script.splitlines(), edits_for(found))
    assert [text for text in edited if text not in script.splitlines()][1:] == [line]
    after = tmp_path / "edited.py"
    after.write_text("\n".join(edited), "utf-8")
    assert findings(after) == []


def test_where_there_may_be_other_callbacks_nothing_is_edited(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LIGHTNING.replace("KEYWORDS", "**quiet,"), "utf-8")
    (found,) = findings(file)
    assert edits_for(found) == ()
    assert "ExactAccumulation()" in found.advice


def test_the_edit_passes_the_count_of_a_loss_whose_graph_does_not_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text(TRANSFORMERS, "utf-8")
    (found,) = (each for each in findings(file) if each.code == "GG103")
    edited = apply(TRANSFORMERS.splitlines(), edits_for(found))
    assert "trainer = exact(trainer, count=lambda inputs: (inputs['labels'][:, 1:] != -100).sum())" in edited
    after = tmp_path / "edited.py"
    after.write_text("\n".join(edited), "utf-8")
    assert findings(after) == []
