"""Tasks in sequence with rehearsal of stored answers. The rehearsal pass runs under no_grad and only shifts the loss."""

import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
adam = torch.optim.Adam(network.parameters(), lr=1e-2)
memory: list[tuple[torch.Tensor, torch.Tensor]] = []

for task in range(3):
    rotation = torch.linalg.qr(torch.randn(6, 6)).Q
    for step in range(8):
        x = torch.randn(32, 6)
        y = (x @ rotation)[:, :3].argmax(1)
        answers = network(x)
        loss = nn.functional.cross_entropy(answers, y)
        if memory:
            old, stored = memory[step % len(memory)]
            with torch.no_grad():  # expect: broken-graph
                again = network(old)
            loss = loss + 0.5 * nn.functional.mse_loss(again, stored)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step == 7:
            memory.append((x, answers.detach()))
    print(f"task {task}: {loss.item():.3f}, {len(memory)} batches in memory")
