"""Validation runs every few batches and switches to evaluation mode through a helper; only the next epoch trains
in training mode again.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Matcher:
    def __init__(self):
        self.image = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))
        self.text = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 8))
        self.optimizer = torch.optim.Adam([*self.image.parameters(), *self.text.parameters()], lr=2e-3)

    def to_training(self):
        self.image.train()
        self.text.train()

    def to_validation(self):
        self.image.eval()  # expect: train-eval-mode
        self.text.eval()

    def scores(self, images, texts):
        return F.normalize(self.image(images), dim=1) @ F.normalize(self.text(texts), dim=1).t() / 0.1

    def fit_batch(self, images, texts):
        scores = self.scores(images, texts)
        loss = F.cross_entropy(scores, torch.arange(len(scores)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def recall(matcher, images, texts):
    matcher.to_validation()
    with torch.no_grad():
        best = matcher.scores(images, texts).argmax(1)
    return (best == torch.arange(len(best))).float().mean().item()


def main():
    torch.manual_seed(5)
    hidden = torch.randn(160, 6)
    images, texts = hidden @ torch.randn(6, 12), hidden @ torch.randn(6, 9)
    matcher, seen = Matcher(), 0
    for _ in range(2):
        matcher.to_training()
        for rows in torch.arange(128).split(16):
            loss = matcher.fit_batch(images[rows], texts[rows])
            seen += 1
            if seen % 3 == 0:
                print(seen, f"{loss:.4f} {recall(matcher, images[128:], texts[128:]):.3f}")


if __name__ == "__main__":
    main()
