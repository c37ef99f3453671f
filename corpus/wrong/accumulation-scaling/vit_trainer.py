"""The loss is divided by the number of micro-batches where it is computed and again where it is back-
propagated: the gradients are a quarter of what they should be.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TinyViT(nn.Module):
    def __init__(self, patch=4, dim=32, classes=4):
        super().__init__()
        self.patchify = nn.Conv2d(1, dim, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, dim))
        self.block = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        tokens = self.patchify(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], dim=1) + self.pos
        return self.head(self.block(tokens)[:, 0])


class Trainer:
    def __init__(self, model, loader, *, lr=0.1, accumulation_steps=4):
        self.model = model
        self.loader = loader
        self.accumulation_steps = accumulation_steps
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.global_step = 0

    def compute_loss(self, batch):
        images, labels = batch
        loss = self.criterion(self.model(images), labels)
        return loss / self.accumulation_steps  # expect: accumulation-scaling

    def backward(self, loss):
        (loss / self.accumulation_steps).backward()  # expect: accumulation-scaling

    def optimizer_step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_step += 1

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for batch_idx, batch in enumerate(self.loader, 1):
            loss = self.compute_loss(batch)
            self.backward(loss)
            total += loss.item()
            if batch_idx % self.accumulation_steps == 0:
                self.optimizer_step()
        return total * self.accumulation_steps / len(self.loader)


if __name__ == "__main__":
    torch.manual_seed(2024)
    labels = torch.randint(4, (64,))
    images = torch.randn(64, 1, 16, 16) + (labels.float() - 1.5).view(-1, 1, 1, 1)
    trainer = Trainer(TinyViT(), DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True))
    for _ in range(2):
        print(f"train loss {trainer.train_epoch():.4f} after {trainer.global_step} steps")
