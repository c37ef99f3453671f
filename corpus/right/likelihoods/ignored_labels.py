"""Sums over labels of which some are ignored, divided by their number, by the batch size, by a constant budget of
tokens, and by the fraction of labels that count."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
BATCH, LENGTH, WORDS = 8, 10, 12
BUDGET = BATCH * LENGTH


def divided(losses, labels, how):
    kept = (labels != -100).float()
    return {
        "count": losses.sum() / kept.sum(),
        "sequences": losses.sum() / len(labels),
        "budget": losses.sum() / BUDGET,
        "fraction": losses.mean() / kept.mean(),
    }[how]


sentences = (torch.randint(WORDS, (64, 1)) + torch.arange(LENGTH)) % WORDS
for how in ("count", "sequences", "budget", "fraction"):
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in sentences.split(BATCH):
        labels = batch.roll(-1, 1).masked_fill(torch.rand(batch.shape) < torch.rand(()), -100)
        losses = F.cross_entropy(model(batch).flatten(0, 1), labels.flatten(), reduction="none")
        optimizer.zero_grad()
        divided(losses, labels, how).backward()
        optimizer.step()
    print(how, model[1].weight.norm().item())
