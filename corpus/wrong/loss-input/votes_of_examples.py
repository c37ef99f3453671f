"""Each query is compared with labelled examples. The loss normalizes the classes' votes, which add up to 1, again."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
CLASSES, SHOTS = 4, 3
prototypes = torch.randn(CLASSES, 10)
embed = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(embed.parameters(), lr=3e-3)
labels = torch.arange(CLASSES).repeat(SHOTS)
one_hot = F.one_hot(labels, CLASSES).float()

for episode in range(20):
    examples = prototypes[labels] + 0.4 * torch.randn(len(labels), 10)
    wanted = torch.randint(CLASSES, (24,))
    queries = prototypes[wanted] + 0.4 * torch.randn(24, 10)
    distance = torch.cdist(embed(queries), embed(examples))
    attention = torch.softmax(-distance, dim=-1)  # expect: loss-input
    votes = attention @ one_hot
    loss = F.cross_entropy(votes, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f} {(votes.argmax(1) == wanted).float().mean():.2f}")
