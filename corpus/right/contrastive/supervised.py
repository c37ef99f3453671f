"""Supervised contrastive learning, then a linear classifier on the frozen encoder: the projection head is trained and
thrown away, and the encoder gets no gradient in the second stage."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SupConLoss(nn.Module):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.temperature = temperature

    def forward(self, z, labels):
        z = F.normalize(z, dim=1)
        logits = z @ z.T / self.temperature
        logits = logits - logits.max(dim=1, keepdim=True).values.detach()
        others = ~torch.eye(len(z), dtype=torch.bool)
        positives = (labels[:, None] == labels[None, :]) & others
        log_prob = logits - torch.log((logits.exp() * others).sum(1, keepdim=True))
        per_anchor = -(log_prob * positives).sum(1) / positives.sum(1).clamp(min=1)
        return per_anchor[positives.any(1)].mean()


def data(count):
    labels = torch.randint(0, 4, (count,))
    return torch.randn(count, 10) + 2 * F.one_hot(labels, 10), labels


def main():
    torch.manual_seed(4)
    encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))
    projector = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
    criterion = SupConLoss()
    optimizer = torch.optim.SGD(
        list(encoder.parameters()) + list(projector.parameters()), lr=0.05, momentum=0.9
    )
    for _ in range(8):
        x, labels = data(32)
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        loss = criterion(projector(encoder(views)), labels.repeat(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"contrastive {loss.item():.3f}")

    classifier = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.1)
    encoder.eval()
    for _ in range(8):
        x, labels = data(32)
        with torch.no_grad():
            features = encoder(x)
        loss = F.cross_entropy(classifier(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"linear {loss.item():.3f}")


main()
