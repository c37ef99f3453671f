"""Scores are negative distances and go through a ReLU, so every gradient is exactly zero: all 8 tensors are at
rest, and the loss stays at log 4."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvEmbed(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        layers = []
        for c_in in (1, width):
            layers += [
                nn.Conv2d(c_in, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).mean((2, 3))


def scores(support, query, n_way):
    prototypes = support.view(n_way, -1, support.size(-1)).mean(1)
    distance = torch.cdist(query, prototypes).pow(2)
    return F.relu(-distance)  # expect: zero-gradient


def sample_episode(patterns, n_way=4, n_shot=2, n_query=3):
    classes = torch.randperm(len(patterns))[:n_way]
    base = patterns[classes].unsqueeze(1)
    support = base + 1.5 * torch.randn(n_way, n_shot, 8, 8)
    query = base + 1.5 * torch.randn(n_way, n_query, 8, 8)
    labels = torch.arange(n_way).repeat_interleave(n_query)
    return support.reshape(-1, 1, 8, 8), query.reshape(-1, 1, 8, 8), labels


def main(episodes=8, n_way=4):
    torch.manual_seed(21)
    patterns = torch.randn(12, 8, 8)
    net = ConvEmbed()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for episode in range(episodes):
        support, query, labels = sample_episode(patterns, n_way)
        z = net(torch.cat([support, query]))
        logits = scores(z[: len(support)], z[len(support) :], n_way)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 4 == 3:
            accuracy = (logits.argmax(1) == labels).float().mean()
            print(f"episode {episode + 1}: loss {loss:.3f} acc {accuracy:.2f}")


if __name__ == "__main__":
    main()
