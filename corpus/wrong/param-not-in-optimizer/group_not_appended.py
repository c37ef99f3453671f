"""The group of the head is filled but not appended: the optimizer gets the encoder's group only."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(40, 12)
        self.head = nn.Linear(12, 4)
        self.prior = nn.Parameter(torch.zeros(4))

    def forward(self, ids):
        return self.head(torch.tanh(self.encoder(ids))) + self.prior


class Training:
    def __init__(self, model):
        self.model = model
        groups = []
        group = {"lr": 1e-3, "weight_decay": 0.01, "params": []}
        for name, parameter in model.named_parameters():
            if name.startswith("encoder"):
                group["params"].append(parameter)
        groups.append(group)
        group = {"lr": 2e-2, "weight_decay": 0.0, "params": []}  # expect: param-not-in-optimizer
        for name, parameter in model.named_parameters():
            if not name.startswith("encoder"):
                group["params"].append(parameter)
        self.optimizer = torch.optim.AdamW(groups)

    def step(self, ids):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1), (ids % 4).flatten())
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(4)
training = Training(Tagger())
losses = [training.step(torch.randint(40, (8, 6))) for _ in range(12)]
print(f"{losses[0]:.4f} {losses[-1]:.4f}")
