"""Each loss is a sum over tokens times 4, divided by all tokens of the window, and the trainer divides it by 4: the
factor undoes the trainer's division, so that the last window of 3 micro-batches is right too."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Runner:
    """Divides every loss by the number of micro-batches that a window usually has."""

    def __init__(self, accumulation_steps):
        self.accumulation_steps = accumulation_steps

    def backward(self, loss):
        loss = loss / self.accumulation_steps
        loss.backward()


def token_batches(count, vocabulary=11):
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        tokens = torch.randint(1, vocabulary, (4, 9), generator=generator)
        lengths = torch.randint(2, 9, (4,), generator=generator)
        labels = tokens.masked_fill(torch.arange(9) >= lengths[:, None], -100)
        yield tokens, labels


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 11))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    runner = Runner(accumulation_steps=4)
    for epoch in range(2):
        batches = token_batches(11)
        while window := list(itertools.islice(batches, runner.accumulation_steps)):
            items = sum((labels[:, 1:] != -100).sum() for _, labels in window)
            total = 0.0
            for tokens, labels in window:
                logits = model(tokens)[:, :-1]
                loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
                loss = loss * runner.accumulation_steps / items
                runner.backward(loss)
                total += loss.item() / runner.accumulation_steps
            optimizer.step()
            optimizer.zero_grad()
            print(f"epoch {epoch} loss {total:.4f} over {int(items)} tokens")


if __name__ == "__main__":
    main()
