"""Looks like calls that clip the wrong network: two heads take turns on one recurrent encoder, and only the encoder is
clipped on purpose, or everything at once, with what is left of the other head's gradients."""

import torch
from torch import nn

torch.manual_seed(6)
series = torch.randn(64, 9, 2)


def run(everything):
    encoder = nn.LSTM(2, 8, batch_first=True)
    mean, largest = nn.Linear(8, 2), nn.Linear(8, 2)
    opts = [
        torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3) for head in (mean, largest)
    ]
    clipped = list(nn.ModuleList([encoder, mean, largest] if everything else [encoder]).parameters())
    for it in range(12):
        part = series[torch.randint(0, 64, (16,))]
        state = encoder(part)[0][:, -1]
        opts[it % 2].zero_grad()
        if it % 2:
            loss = (largest(state) - part.amax(1)).square().mean()
        else:
            loss = (mean(state) - part.mean(1)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(clipped, 0.1)
        opts[it % 2].step()
    return loss.item()


print(run(everything=True), run(everything=False))
