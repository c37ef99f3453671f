"""Which even columns of pixels belong to which odd columns of the same digit? Two small encoders, the towers, learn
this from 1,024 pairs at a time, and encode 64 pairs at a time. The contrastive loss sees all 1,024 pairs. A loss
per micro-batch would see 64.
"""

import warnings
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg
from gradgate.errors import CoupledLossWarning
from gradgate.planning import peak_memory

BATCH, MICRO_BATCH, UPDATES = 1024, 64, 60


class Towers(nn.Module):
    """One encoder for even columns, one for odd columns, and the temperature of the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.even, self.odd = (
            nn.Sequential(
                nn.Flatten(),
                nn.Linear(32, 256),
                nn.SiLU(),
                nn.Linear(256, 256),
                nn.SiLU(),
                nn.Linear(256, 64),
            )
            for _ in range(2)
        )
        self.log_temperature = nn.Parameter(torch.tensor(-2.66))

    def forward(self, images):
        even, odd = images[..., ::2], images[..., 1::2]
        return F.normalize(self.even(even), dim=1), F.normalize(self.odd(odd), dim=1)

    def loss(self, codes):
        return gg.losses.clip_loss(*codes, temperature=self.log_temperature.exp())


def accuracy(towers, images):
    """Return the fraction of images whose even columns are nearest to their own odd columns."""
    with torch.no_grad():
        even, odd = towers(images)
    return float(((even @ odd.T).argmax(1) == torch.arange(len(images))).double().mean())


def trained(images, way):
    """Return the towers after 60 updates, and the peak memory of the first two updates."""
    towers = Towers()
    optimizer = torch.optim.AdamW(towers.parameters(), lr=3e-3)
    accumulator = gg.Accumulator(optimizer, model=towers)
    order = torch.Generator().manual_seed(0)
    peak = 0
    for number in range(UPDATES):
        batch = images[torch.randperm(len(images), generator=order)[:BATCH]]
        window = batch.split(BATCH if way == "whole batch" else MICRO_BATCH)
        measured = number < 2  # AdamW has its state by then, and measuring takes longer than training
        with peak_memory() if measured else nullcontext() as memory, accumulator.update() as update:
            if way == "loss per micro-batch":
                for micro_batch in update.micro_batches(window):
                    update.backward(towers.loss(towers(micro_batch)), count=len(micro_batch))
            else:
                update.backward_coupled(towers, window, towers.loss)
        if measured:
            peak = max(peak, memory.peak_bytes)
    return towers, peak


def main():
    images = torch.from_numpy(load_digits().images / 16).float()[:, None]
    seen, unseen = images[:1297], images[1297:]
    figures = {}
    print(f"odd columns found for the even ones of {len(unseen)} unseen digits, after {UPDATES} updates:")
    for way in ("whole batch", "backward_coupled", "loss per micro-batch"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoupledLossWarning)  # which says what this example shows
            towers, peak = trained(seen, way)
        figures[way] = accuracy(towers, unseen), peak
        print(f"  {way:>20}  {figures[way][0]:.1%} right, peak {peak / 2**20:.1f} MiB")
    return figures


if __name__ == "__main__":
    main()
