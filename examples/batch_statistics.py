"""Barlow Twins: the features of two views are normalized by their mean and deviation over the batch, and their
correlations are compared with the identity. The statistics of 16 samples are noisy. With `backward_coupled`, they
are those of the whole batch.
"""

import warnings

import torch
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg
from gradgate.errors import CoupledLossWarning

BATCH, MICRO_BATCH, FEATURES, UPDATES = 512, 16, 16, 20


def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, FEATURES)).double()


def correlations(views):
    left, right = ((view - view.mean(0)) / view.std(0, unbiased=False) for view in views)
    return left.T @ right / len(left)


def loss_fn(views):
    """Zbontar et al. 2021, equation 1."""
    apart = (correlations(views) - torch.eye(FEATURES)).square()
    return apart.diagonal().sum() + 0.05 * (apart.sum() - apart.diagonal().sum())


def trained(batch, way):
    """Return the loss of the whole batch after 20 updates."""
    net = encoder()

    def encode(pixels):
        return net(pixels[:, ::2]), net(pixels[:, 1::2])  # two views: even and odd columns

    accumulator = gg.Accumulator(torch.optim.Adam(net.parameters(), lr=3e-3), model=net)
    window = batch.split(BATCH if way == "whole batch" else MICRO_BATCH)
    for _ in range(UPDATES):
        with accumulator.update() as update:
            if way == "loss per micro-batch":
                for micro_batch in update.micro_batches(window):
                    update.backward(loss_fn(encode(micro_batch)), count=len(micro_batch))
            else:
                update.backward_coupled(encode, window, loss_fn)
    with torch.no_grad():
        return float(loss_fn(encode(batch)))


def main():
    batch = torch.from_numpy(load_digits().data[:BATCH] / 16)
    with torch.no_grad():
        figures = {"before": float(loss_fn([encoder()(batch[:, ::2]), encoder()(batch[:, 1::2])]))}
    ways = ("whole batch", "backward_coupled", "loss per micro-batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoupledLossWarning)  # which says what this example shows
        figures |= {way: trained(batch, way) for way in ways}
    print(f"Barlow Twins' loss of {BATCH} digits, before and after {UPDATES} updates:")
    for way, loss in figures.items():
        print(f"  {way:>20}  {loss:.2f}")
    return figures


if __name__ == "__main__":
    main()
