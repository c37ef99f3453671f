"""LightningModules as people write them: one right, the others each with one mistake, marked by its rule's code."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def loader() -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, :3]).argmax(1)), batch_size=8)  # the last one has 4


class Right(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 3)

    def loss(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.head(self.body(x)), y)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("validation", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class HeadForgotten(Right):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.body.parameters(), lr=1e-3)  # GG501


class BodyDetached(Right):
    def loss(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        features = self.body(x).detach()  # GG402
        return F.cross_entropy(self.head(features), y)


class DividedTwice(Right):
    def training_step(self, batch: list[Tensor], index: int) -> dict[str, Tensor]:
        loss = self.loss(batch)
        return {"loss": loss / self.trainer.accumulate_grad_batches}  # GG102


class Fails(Right):
    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        if index == 5:
            raise ZeroDivisionError
        return super().training_step(batch, index)


class Thawed(Right):
    """For BackboneFinetuning, which adds the body to the optimizer later, batch norms before they are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.body

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=1e-3)


class Gan(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def configure_optimizers(self):
        return [torch.optim.Adam(net.parameters(), 1e-3) for net in (self.generator, self.critic)]

    def training_step(self, batch: list[Tensor], index: int) -> None:
        real, _ = batch
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss_fn, fake = F.binary_cross_entropy_with_logits, self.generator(torch.randn(len(real), 4))
        for_generator, for_critic = self.optimizers()
        self.toggle_optimizer(for_generator)
        self.manual_backward(loss_fn(self.critic(fake), ones))
        for_generator.step()
        for_generator.zero_grad()
        self.untoggle_optimizer(for_generator)
        self.toggle_optimizer(for_critic)
        loss = loss_fn(self.critic(real), ones) + loss_fn(self.critic(fake.detach()), zeros)
        self.manual_backward(loss / 2)
        for_critic.step()
        for_critic.zero_grad()
        self.untoggle_optimizer(for_critic)
