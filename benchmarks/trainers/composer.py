"""MosaicML's Composer, which gets the whole batch and splits it."""

from composer import ComposerModel, DataSpec, Trainer
from torch import Tensor

from ._task import MicroBatch, Task, Way, loader


class Learner(ComposerModel):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self._loss = task.loss

    def forward(self, batch: MicroBatch) -> Tensor:
        return self.model(batch[0])

    def loss(self, outputs: Tensor, batch: MicroBatch) -> Tensor:
        return self._loss(outputs, batch[1])


def train(task: Task, **options) -> None:
    spec = DataSpec(loader(task.windows()), get_num_tokens_in_batch=lambda batch: task.count(batch[1]))
    arguments = {"device_train_microbatch_size": max(task.sizes), **options}
    trainer = Trainer(
        model=Learner(task),
        train_dataloader=spec,
        optimizers=task.optimizer,
        max_duration=f"{task.epochs}ep",
        device="cpu",
        precision="fp32",  # its name for: leave the dtypes alone
        progress_bar=False,
        auto_log_hparams=False,
        **arguments,
    )
    trainer.fit()
    trainer.close()


def train_with_counts(task: Task) -> None:
    train(task, accumulate_train_batch_on_tokens=True)


def train_what_fits(task: Task) -> None:
    train(task, device_train_microbatch_size="auto")


WAYS = (
    Way(train),
    Way(train_with_counts, ("tokens",), "accumulate_train_batch_on_tokens"),
    Way(train_what_fits, ("memory",), 'device_train_microbatch_size="auto"'),
)
