"""A large network and a small one are trained in one pass, each by its optimizer. The distillation of the small one
also moves the large one."""

import torch
import torch.nn.functional as F
from torch import nn


class Sequence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru = nn.GRU(5, width, batch_first=True)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


torch.manual_seed(12)
nets = {"large": Sequence(24), "small": Sequence(6)}
optimizers = {name: torch.optim.Adam(net.parameters(), lr=3e-3) for name, net in nets.items()}
temperature = 3.0
for step in range(12):
    x = torch.randn(24, 7, 5)
    y = x.sum(1)[:, :4].argmax(1)
    scores = {name: net(x) for name, net in nets.items()}
    losses = {name: F.cross_entropy(each, y) for name, each in scores.items()}
    soft = (scores["large"] / temperature).softmax(-1)
    away = F.kl_div(
        (scores["small"] / temperature).log_softmax(-1), soft, reduction="batchmean"
    )  # expect: attached-target
    loss = losses["large"] + 0.5 * losses["small"] + 0.5 * temperature**2 * away
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers.values():
        optimizer.step()
    print(step, {name: round(each.item(), 3) for name, each in losses.items()})
