"""How much time does exact accumulation add to an update in Lightning, transformers and Accelerate?

Each round trains the medium model for two windows, with and without the line, in turns. CPU time, so that other
processes matter less. Takes three minutes.
"""

import copy
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from _alternate import arguments, report
from _models import Transformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from gradgate.integrations import accelerate as for_accelerate
from gradgate.integrations import lightning as for_lightning
from gradgate.integrations import transformers as for_transformers

MICRO_BATCHES, SEQUENCES = 8, 2  # two windows of 32 texts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Transformer()

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.body(input_ids).flatten(0, 1), labels.flatten())}


torch.manual_seed(0)
DATA = [{"input_ids": row[:-1], "labels": row[1:]} for row in torch.randint(512, (32, 129))]
START = Model()


def lightning(exact: bool) -> Callable[[], object]:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(START)

        def training_step(self, batch: Any) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=MICRO_BATCHES,
        callbacks=[for_lightning.ExactAccumulation()] if exact else [],
        **dict.fromkeys(quiet, False),
    )
    module, loader = Module(), DataLoader(DATA, batch_size=SEQUENCES)
    return lambda: trainer.fit(module, loader)


def transformers(exact: bool) -> Callable[[], object]:
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=SEQUENCES,
        gradient_accumulation_steps=MICRO_BATCHES,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(copy.deepcopy(START), settings, train_dataset=DATA)
    return (for_transformers.exact(trainer) if exact else trainer).train


def accelerate(exact: bool) -> Callable[[], object]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    if exact:
        for_accelerate.exact(accelerator)
    model = copy.deepcopy(START)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(DATA, batch_size=SEQUENCES))

    def run() -> None:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()

    return run


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    question = "CPU time of an update with exact accumulation, against the trainer without it"
    given = arguments(question)
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    torch.empty(
        4 << 20
    )  # freed at once: from then on glibc keeps pages that otherwise it gives back and faults in
    rows = ["### medium model, 8 micro-batches of 2 x 128 tokens, AdamW", ""]
    rows += ["| trainer | ratio (median) | middle half |", "|---|---|---|"]
    for make in (lightning, transformers, accelerate):
        ratios = []
        for turn in range(given.rounds or 14):
            order = (False, True) if turn % 2 else (True, False)
            runs = {exact: make(exact) for exact in order}
            took = {exact: seconds(runs[exact]) for exact in order}
            if turn > 1:  # the first two warm up
                ratios.append(took[True] / took[False])
        low, _, high = statistics.quantiles(ratios, n=4)
        rows.append(f"| {make.__name__} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |")
    report(question, ["\n".join(rows) + "\n"], given.write)


if __name__ == "__main__":
    main()
