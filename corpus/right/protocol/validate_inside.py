"""Every few batches the model is put in evaluation mode and evaluated in the middle of an epoch; the function puts the
training mode back."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Trainer:
    def __init__(self, model, train, valid, lr=3e-3, eval_every=4):
        self.model, self.train_data, self.valid_data = model, train, valid
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.eval_every, self.step, self.losses = eval_every, 0, []

    @torch.no_grad()
    def estimate(self):
        self.model.eval()
        x, y = self.valid_data
        value = F.cross_entropy(self.model(x), y).item()
        self.model.train()
        return value

    def fit(self, epochs, batch=64):
        x, y = self.train_data
        self.model.train()
        for _ in range(epochs):
            for idx in torch.randperm(len(x)).split(batch):
                if self.step % self.eval_every == 0:
                    self.losses.append(self.estimate())
                loss = F.cross_entropy(self.model(x[idx]), y[idx])
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.step += 1
        return self.losses


torch.manual_seed(0)
d = load_digits()
x, y = torch.tensor(d.data / 16, dtype=torch.float32), torch.tensor(d.target)
net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
losses = Trainer(net, (x[:640], y[:640]), (x[640:900], y[640:900])).fit(epochs=2)
print(" ".join(f"{v:.3f}" for v in losses))
