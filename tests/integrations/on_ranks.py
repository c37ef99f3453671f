"""One update in Lightning's manual optimization, on two ranks with unequal numbers of samples. Run by torchrun.

How far is it from the whole batch's?
"""

import json
import logging
import os
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradgate as gg

SAMPLES, MICRO_BATCH = 22, 4

warnings.simplefilter("ignore")
logging.disable()
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(SAMPLES, 6, dtype=torch.float64)
y = (x @ torch.randn(6, 3, dtype=torch.float64)).argmax(1)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
truth = torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters())
received: list[list[Tensor]] = []


@optimizer.register_step_pre_hook
def note(*_: object) -> None:
    received.append([parameter.grad.clone() for parameter in model.parameters()])


def lightning() -> float:
    from lightning.pytorch import LightningModule, Trainer

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
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,
        max_epochs=1,
        enable_model_summary=False,
        **quiet,
    )
    trainer.fit(learner)
    return learner.update.count


def main() -> None:
    count = lightning()
    (gradients,) = received
    largest = max(float(gradient.abs().max()) for gradient in truth)
    off = max(float((one - other).abs().max()) for one, other in zip(gradients, truth, strict=True))
    if os.environ["RANK"] == "0":
        print(json.dumps({"count": count, "error": off / largest}))


if __name__ == "__main__":
    main()
