"""A network should repeat the first symbol of a sequence, but its state is detached at every symbol."""

import torch
from torch import nn

torch.manual_seed(0)


class Echo(nn.Module):
    def __init__(self, symbols=5, width=12):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.cell = nn.GRUCell(width, width)
        self.read = nn.Linear(width, symbols)

    def forward(self, sequences):
        state = torch.zeros(len(sequences), self.cell.hidden_size)
        for symbol in sequences.unbind(1):
            state = self.cell(self.embed(symbol), state.detach())  # expect: broken-graph
        return self.read(state)


model = Echo()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    sequences = torch.randint(5, (32, 6))
    loss = nn.functional.cross_entropy(model(sequences), sequences[:, 0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
