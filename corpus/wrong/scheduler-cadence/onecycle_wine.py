"""A one-cycle schedule is attached and never advanced: the rate stays at its start of 0.008 where it should
have peaked at 0.2, and the loss ends at 0.62 in place of 0.06.
"""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

SEED, EPOCHS, BATCH, MAX_LR = 13, 3, 32, 0.2


def get_loader():
    data = load_wine()
    x = torch.as_tensor(data.data, dtype=torch.float32)
    x = (x - x.mean(dim=0)) / x.std(dim=0)
    y = torch.as_tensor(data.target)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)


def get_model():
    return nn.Sequential(nn.Linear(13, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


class Fitter:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=MAX_LR, momentum=0.9)
        self.scheduler = OneCycleLR(  # expect: scheduler-cadence
            self.optimizer, max_lr=MAX_LR, epochs=EPOCHS, steps_per_epoch=len(loader)
        )

    def train_one_epoch(self):
        self.model.train()
        losses = []
        for xb, yb in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(xb), yb)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        hits = [(self.model(xb).argmax(1) == yb).float().mean().item() for xb, yb in self.loader]
        return sum(hits) / len(hits)


torch.manual_seed(SEED)
loader = get_loader()
fitter = Fitter(get_model(), loader)
for epoch in range(EPOCHS):
    print(f"epoch {epoch}: loss {fitter.train_one_epoch():.4f} accuracy {fitter.accuracy():.3f}")
