"""open-instruct #1498: a masked mean of each micro-batch, added up over a window and divided by their number."""

import torch
from torch import nn


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()  # expect: microbatch-normalization


class Learner:
    def __init__(self, accumulation_steps):
        self.model = nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 30))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accumulation_steps = accumulation_steps

    def step(self, batches):
        for tokens, mask in batches:
            losses = -self.model(tokens).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
            loss = masked_mean(losses, mask)
            (loss / self.accumulation_steps).backward()  # expect: microbatch-normalization
        self.optimizer.step()
        self.optimizer.zero_grad()


torch.manual_seed(0)
learner = Learner(2)
for _ in range(8):
    masks = [(torch.rand(4, 10) < share).float() for share in (0.2, 0.9)]
    learner.step([(torch.randint(30, (4, 10)), mask) for mask in masks])
