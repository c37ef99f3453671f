"""Looks as if only the last loss of a loop were back-propagated by mistake: the network returns every iterate, training
asks for the last one to be right, and the losses of the others are summed up for display."""

import torch
from torch import nn


class Thinker(nn.Module):
    def __init__(self, width=20, iterations=5):
        super().__init__()
        self.iterations = iterations
        self.lift, self.think, self.answer = (
            nn.Linear(6, width),
            nn.Linear(width + 6, width),
            nn.Linear(width, 2),
        )

    def forward(self, x):
        thought, answers = torch.relu(self.lift(x)), []
        for _ in range(self.iterations):
            thought = torch.relu(self.think(torch.cat([thought, x], 1)))
            answers.append(self.answer(thought))
        return answers


torch.manual_seed(0)
net, criterion = Thinker(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(12):
    x = torch.randn(32, 6)
    y, area = (x.prod(1) > 0).long(), 0.0
    for answer in net(x):
        loss = criterion(answer, y)
        area += loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: at the end {loss.item():.3f}, on average {area / net.iterations:.3f}")
