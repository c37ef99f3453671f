"""To lower the rate, the optimizer's initial state dict is loaded back each epoch, which also throws away the moments
that Adam has collected."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Trainer:
    def __init__(self, model, lr, decay):
        self.model = model
        self.decay = decay
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.initial_state = copy.deepcopy(self.optimizer.state_dict())

    def set_epoch_lr(self, epoch):
        state = copy.deepcopy(self.initial_state)
        for group in state["param_groups"]:
            group["lr"] *= self.decay**epoch
        self.optimizer.load_state_dict(state)  # expect: optimizer-state-reset

    def run(self, batches, epochs):
        for epoch in range(epochs):
            self.set_epoch_lr(epoch)
            losses = []
            for x, y in batches:
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
            lr = self.optimizer.param_groups[0]["lr"]
            print(f"epoch {epoch} lr {lr:.5f} loss {sum(losses) / len(losses):.4f}")


torch.manual_seed(71)
x = torch.randn(240, 1, 20)
y = (x[:, 0, 5:10].mean(1) > x[:, 0, 10:15].mean(1)).long()
batches = list(zip(x.split(24), y.split(24)))
model = nn.Sequential(nn.Conv1d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
Trainer(model, lr=0.005, decay=0.8).run(batches, epochs=4)
