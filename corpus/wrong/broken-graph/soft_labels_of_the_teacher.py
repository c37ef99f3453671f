"""A pupil should match its teacher's probabilities, but both sides of the divergence are the teacher's."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
pupil = nn.Linear(6, 4)
optimizer = torch.optim.Adam(pupil.parameters(), lr=1e-2)
divergence = nn.KLDivLoss(reduction="batchmean")
for step in range(20):
    x = torch.randn(32, 6)
    labels = x[:, :4].argmax(1)
    with torch.no_grad():
        wanted = teacher(x)
    found = pupil(x)
    soft = divergence(F.log_softmax(wanted / 2, dim=1), F.softmax(wanted / 2, dim=1))
    loss = 0.3 * F.cross_entropy(found, labels) + 0.7 * soft  # expect: broken-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
