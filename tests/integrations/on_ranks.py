"""The windows of ``exact_cases.py``, and one update in Lightning's manual optimization, on ranks."""

import json
import logging
import os
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradgate as gg
from tests.integrations.exact_cases import CASES, QUIET, RIGHT, error, gradients

SAMPLES, MICRO_BATCH = 22, 4


def manual() -> tuple[float, float]:
    """Return the count of an update of unequal shares, and its error relative to the whole batch's."""
    from lightning.pytorch import LightningModule, Trainer

    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 6, dtype=torch.float64)
    y = (x @ torch.randn(6, 3, dtype=torch.float64)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    truth = torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters())

    class Exact(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net = model

        def configure_optimizers(self):
            return optimizer

        def on_train_start(self) -> None:
            self.accumulator = gg.Accumulator(self.optimizers(), model=self.trainer.model)

        def train_dataloader(self):
            mine = slice(0, 14) if self.global_rank == 0 else slice(14, None)
            return DataLoader(TensorDataset(x[mine], y[mine]), batch_size=SAMPLES)

        def training_step(self, batch: list[Tensor], index: int) -> None:
            parts = zip(*(tensor.split(MICRO_BATCH) for tensor in batch), strict=True)
            with self.accumulator.update() as update:
                for part_x, part_y in update.micro_batches(list(parts)):
                    update.backward(F.cross_entropy(self.net(part_x), part_y), count=len(part_y))
            self.update = update

    learner = Exact()
    ranks = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    trainer = Trainer(accelerator="cpu", max_epochs=1, **ranks, **QUIET)
    # As each step receives them, so a second step would be noticed.
    (received,) = gradients(optimizer, lambda: trainer.fit(learner))
    return learner.update.count, error(received, truth)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    count, off = manual()
    errors = {
        name: [run(True), run(False) if name in CASES else []]
        for name, (run, _) in {**CASES, **RIGHT}.items()
    }
    if os.environ["RANK"] == "0":
        print(json.dumps({"errors": errors, "manual count": count, "manual error": off}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
