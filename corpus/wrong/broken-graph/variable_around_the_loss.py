"""The mask is computed without gradients. Wrapping the loss in a Variable only hides the error of backward()."""

import torch
from torch import nn
from torch.autograd import Variable


class Mask(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(9, 9)

    def forward(self, noisy):
        with torch.no_grad():
            mask = torch.sigmoid(self.net(noisy))
        return mask * noisy


def objective(clean, guess):
    return Variable((clean - guess).abs().mean(), requires_grad=True)  # expect: broken-graph


torch.manual_seed(0)
mask = Mask()
adam = torch.optim.Adam(mask.parameters(), lr=1e-3)
for noisy in torch.rand(120, 9).split(12):
    loss = objective(noisy.clamp(min=0.5), mask(noisy))
    adam.zero_grad()
    loss.backward()
    adam.step()
