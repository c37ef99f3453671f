"""The schedule is laid out over epochs * batches and advanced once per epoch: the rate ends at 0.0495 in
place of 0.0001, and never anneals.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, random_split
from torch.utils.data.dataset import TensorDataset


class MatrixFactorization(nn.Module):
    def __init__(self, users, items, dim=8):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


class Trainer:
    def __init__(self, model, train_loader, val_loader, max_epochs):
        self.model = model
        self.train_loader, self.val_loader = train_loader, val_loader
        self.max_epochs = max_epochs
        self.configure_optimizers()

    def configure_optimizers(self):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(  # expect: scheduler-cadence
            self.optimizer, T_max=self.max_epochs * len(self.train_loader), eta_min=1e-5
        )

    def training_step(self, batch):
        u, i, r = batch
        loss = nn.functional.mse_loss(self.model(u, i), r)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        errors = [nn.functional.mse_loss(self.model(u, i), r).item() for u, i, r in self.val_loader]
        return (sum(errors) / len(errors)) ** 0.5

    def on_epoch_end(self, epoch, train_loss):
        self.scheduler.step()  # expect: scheduler-cadence
        print(f"epoch {epoch}: train mse {train_loss:.3f}, val rmse {self.validate():.3f}")

    def fit(self):
        for epoch in range(self.max_epochs):
            self.model.train()
            losses = [self.training_step(batch) for batch in self.train_loader]
            self.on_epoch_end(epoch, sum(losses) / len(losses))


def ratings(n=400, users=20, items=30):
    u, i = torch.randint(users, (n,)), torch.randint(items, (n,))
    taste, kind = torch.randn(users, 2), torch.randn(items, 2)
    return TensorDataset(u, i, (taste[u] * kind[i]).sum(1) + 0.1 * torch.randn(n))


if __name__ == "__main__":
    torch.manual_seed(64)
    train_set, val_set = random_split(ratings(), [320, 80])
    Trainer(
        MatrixFactorization(20, 30),
        DataLoader(train_set, 32, shuffle=True),
        DataLoader(val_set, 80),
        max_epochs=3,
    ).fit()
