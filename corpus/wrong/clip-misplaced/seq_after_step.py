"""The gradients are clipped after the update has used them at full size, and then thrown away."""

import torch
import torch.nn as nn


class AddingProblem(torch.utils.data.IterableDataset):
    def __init__(self, n, length, seed):
        self.n, self.length, self.seed = n, length, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n):
            values = torch.rand(self.length, generator=g)
            marks = torch.zeros(self.length)
            marks[torch.randperm(self.length, generator=g)[:2]] = 1
            yield torch.stack([values, marks], 1), (values * marks).sum()


class Recurrent(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(2, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.fc(h[:, -1]).squeeze(1)


def train(hidden=24, lr=0.1, max_norm=0.25):
    torch.manual_seed(0)
    model = Recurrent(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for epoch in range(2):
        loader = torch.utils.data.DataLoader(AddingProblem(320, 15, seed=epoch), batch_size=32)
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # expect: clip-misplaced
            total += loss.item()
        print(f"epoch {epoch}: mse {total / 10:.4f}")


train()
