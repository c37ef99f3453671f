"""The classes' votes are probabilities, of which the loss gets the logarithm; another head attends to codes."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
CLASSES = 4
prototypes = torch.randn(CLASSES, 10)
codes = torch.randn(12, CLASSES)
embed, head = nn.Linear(10, 8), nn.Linear(10, 12)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()], lr=3e-3)
labels = torch.arange(CLASSES).repeat(3)
one_hot = F.one_hot(labels, CLASSES).float()

for episode in range(20):
    examples = prototypes[labels] + 0.4 * torch.randn(len(labels), 10)
    wanted = torch.randint(CLASSES, (24,))
    queries = prototypes[wanted] + 0.4 * torch.randn(24, 10)
    votes = torch.softmax(-torch.cdist(embed(queries), embed(examples)), dim=-1) @ one_hot
    scores = torch.softmax(head(queries), dim=-1) @ codes
    loss = F.nll_loss(votes.clamp_min(1e-6).log(), wanted) + F.cross_entropy(scores, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f} {(votes.argmax(1) == wanted).float().mean():.2f}")
