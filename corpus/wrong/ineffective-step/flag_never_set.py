"""A trainer skips the update while a flag says that it only validates, and nothing ever resets the flag."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, validating=True):
        self.model, self.validating = model, validating
        self.opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step(self, batch):
        signal, label = batch
        self.model.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(signal).squeeze(-1), label)
        loss.backward()
        if not self.validating:  # expect: ineffective-step
            self.opt.step()
        return loss.item()


torch.manual_seed(3)
trainer = Trainer(nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 1)))
signals = torch.randn(96, 12)
labels = (signals[:, ::2].sum(-1) > 0).float()
for epoch in range(2):
    losses = [trainer.step(batch) for batch in zip(signals.split(16), labels.split(16), strict=True)]
    print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
