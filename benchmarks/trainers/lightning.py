"""Lightning, with automatic optimization."""

import tempfile

import lightning
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset

from ._task import MicroBatch, Task, Way


class Learner(lightning.LightningModule):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self.task = task

    def train_dataloader(self):
        return self.task.loader()

    def training_step(self, batch: MicroBatch, index: int):
        x, y = batch
        return self.task.loss(self.model(x), y)

    def configure_optimizers(self):
        return self.task.optimizer


class FindsBatchSize(Learner):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.batch_size = max(task.sizes)

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.task.x, self.task.y), batch_size=self.batch_size)


def trainer(task: Task, folder: str | None = None) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=task.epochs,
        accumulate_grad_batches=task.window,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(task: Task) -> None:
    trainer(task).fit(Learner(task))


def train_what_fits(task: Task) -> None:
    learner = FindsBatchSize(task)
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(task, folder)
        Tuner(run).scale_batch_size(learner, init_val=learner.batch_size)
        run.fit(learner)


WAYS = (Way(train), Way(train_what_fits, ("memory",), "Tuner.scale_batch_size"))
