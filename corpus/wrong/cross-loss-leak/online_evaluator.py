"""Next to a predictive pretraining, an evaluator reads the state of the network. Its labels train the network."""

import torch
from torch import nn


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 20, batch_first=True)
        self.next = nn.Linear(20, 4)

    def forward(self, x):
        states, last = self.rnn(x)
        return self.next(states), last[0]


class Evaluator:
    def __init__(self, width):
        self.head = nn.Linear(width, 2)
        self.probe_optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def update(self, features, labels):
        self.probe_optimizer.zero_grad()
        error = nn.functional.cross_entropy(self.head(features), labels)  # expect: cross-loss-leak
        error.backward()
        self.probe_optimizer.step()
        return error.item()


torch.manual_seed(14)
net, evaluator = Predictor(), Evaluator(20)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(20):
    x = torch.randn(24, 9, 4).cumsum(1)
    predicted, _ = net(x[:, :-1])
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(predicted, x[:, 1:])
    loss.backward()
    error = evaluator.update(net(x)[1], (x[:, -1, 0] > 0).long())
    optimizer.step()
print(f"{loss.item():.3f} {error:.3f}")
