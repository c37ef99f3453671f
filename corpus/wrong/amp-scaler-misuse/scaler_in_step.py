"""A new scaler is made for each batch, so it never gets to lower its scale: the half-precision gradients overflow every
time and each step is skipped."""

import torch
import torch.nn as nn


class Trainer:
    def __init__(self, model, lr=0.01):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def training_step(self, x, y):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)  # expect: amp-scaler-misuse
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float().squeeze(1), y)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()
        return loss.item()

    def fit(self, x, y, epochs, batch_size):
        for epoch in range(epochs):
            order = torch.randperm(len(x))
            losses = [self.training_step(x[i], y[i]) for i in order.split(batch_size)]
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")


torch.manual_seed(1)
x = torch.randn(320, 8)
y = x[:, 0] * 2 - x[:, 3] + 0.5
Trainer(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))).fit(x, y, epochs=3, batch_size=32)
