"""An epoch has ten micro-batches and windows of four, so the last two of each epoch never reach a step: the next epoch starts by clearing them."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainConfig:
    epochs: int = 3
    micro_batch: int = 12
    accumulate: int = 4
    lr: float = 3e-3
    history: dict = field(default_factory=dict)


class Callback:
    def on_epoch_start(self, trainer):
        pass

    def on_backward_end(self, trainer):
        pass

    def on_epoch_end(self, trainer):
        pass


class UpdateCallback(Callback):
    def on_epoch_start(self, trainer):
        trainer.optimizer.zero_grad()

    def on_backward_end(self, trainer):
        if (trainer.batch_idx + 1) % trainer.cfg.accumulate == 0:  # expect: accumulation-window
            nn.utils.clip_grad_norm_(trainer.model.parameters(), 5.0)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()


class HistoryCallback(Callback):
    def on_epoch_start(self, trainer):
        self.losses = []

    def on_backward_end(self, trainer):
        self.losses.append(trainer.last_loss)

    def on_epoch_end(self, trainer):
        trainer.cfg.history[trainer.epoch] = sum(self.losses) / len(self.losses)


class Trainer:
    def __init__(self, model, loader, cfg, callbacks):
        self.model, self.loader, self.cfg = model, loader, cfg
        self.callbacks = callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
        self.criterion = nn.BCEWithLogitsLoss()

    def call(self, hook):
        for cb in self.callbacks:
            getattr(cb, hook)(self)

    def fit(self):
        for self.epoch in range(self.cfg.epochs):
            self.model.train()
            self.call("on_epoch_start")
            for self.batch_idx, (x, y) in enumerate(self.loader):
                loss = self.criterion(self.model(x).squeeze(1), y)
                (loss / self.cfg.accumulate).backward()
                self.last_loss = loss.item()
                self.call("on_backward_end")
            self.call("on_epoch_end")


def main():
    torch.manual_seed(11)
    torch.set_num_threads(1)
    cfg = TrainConfig()
    x = torch.randn(120, 8)
    y = ((x[:, 0] * x[:, 1] + x[:, 2]) > 0).float()
    loader = DataLoader(TensorDataset(x, y), batch_size=cfg.micro_batch, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    Trainer(model, loader, cfg, [UpdateCallback(), HistoryCallback()]).fit()
    print({k: round(v, 4) for k, v in cfg.history.items()})


if __name__ == "__main__":
    main()
