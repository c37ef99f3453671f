"""The weights of the relations are in a plain dict, which parameters() leaves out."""

import torch
from torch import nn


class Relations(nn.Module):
    def __init__(self, names, width):
        super().__init__()
        self.weights = {}  # expect: param-not-in-optimizer
        for name in names:
            self.weights[name] = nn.Parameter(0.3 * torch.randn(width, 4))
        self.mix = nn.Linear(4 * len(names), 1)

    def forward(self, x):
        return self.mix(torch.cat([x @ weight for weight in self.weights.values()], 1)).squeeze(1)


def main():
    torch.manual_seed(3)
    net = Relations(["near", "far"], 6)
    sgd = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(15):
        x = torch.randn(20, 6)
        loss = nn.functional.mse_loss(net(x), x[:, 0] - 2 * x[:, 3])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    print(f"{loss.item():.4f}")


main()
