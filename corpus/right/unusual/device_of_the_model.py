"""A parameter without elements tells the model's device, and no gradient can reach it. LBFGS holds it with the others."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.read = nn.Linear(hidden, 1)
        self.anchor = nn.Parameter(torch.empty(0))

    @property
    def device(self):
        return self.anchor.device

    def forward(self, noisy):
        states, _ = self.rnn(noisy.to(self.device))
        return self.read(states)


def main():
    torch.manual_seed(1)
    clean = torch.sin(torch.linspace(0, 12, 160)).view(4, 40, 1)
    noisy = clean + 0.2 * torch.randn(4, 40, 1)
    model = Denoiser()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (model(noisy) - clean).pow(2).mean()
        loss.backward()
        return loss

    for i in range(5):
        print(i, f"{optimizer.step(closure).item():.5f}")


main()
