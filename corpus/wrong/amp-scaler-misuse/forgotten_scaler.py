"""A trainer makes a gradient scaler, saves its state, and trains in float16 without it."""

import torch
import torch.nn as nn

torch.manual_seed(8)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.model(x).float(), y)
        loss.backward()  # expect: amp-scaler-misuse
        self.optimizer.step()
        return loss.item()

    def state(self):
        return {"model": self.model.state_dict(), "scaler": self.scaler.state_dict()}


x = torch.randn(96, 8)
y = (x[:, 0] > x[:, 1]).long()
trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
for epoch in range(2):
    losses = [trainer.step(*batch) for batch in zip(x.split(12), y.split(12))]
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
print(trainer.state()["scaler"]["scale"])
