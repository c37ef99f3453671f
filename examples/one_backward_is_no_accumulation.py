"""One backward pass over a sum of losses is not accumulation. It gives the gradient of the whole batch and uses
the memory of the whole batch, because the sum keeps every graph alive until that one backward pass.

Accumulation calls backward after each part, so only one part's graph is alive at a time. The gradient grows part
by part, and the weight moves only in the step.
"""

import torch
import torch.nn.functional as F
from torch import nn

import gradgate as gg
from gradgate.planning import peak_memory

PARTS = 2

# Four ways to make one update. Each yields after every backward pass, so that we can look at the gradient.


def whole_batch(model, optimizer, x):
    F.mse_loss(model(x), 2 * x).backward()
    yield
    optimizer.step()


def summed_list(model, optimizer, x):
    losses = [F.mse_loss(model(part), 2 * part) / PARTS for part in x.chunk(PARTS)]
    sum(losses).backward()
    yield
    optimizer.step()


def accumulated(model, optimizer, x):
    for part in x.chunk(PARTS):
        (F.mse_loss(model(part), 2 * part) / PARTS).backward()
        yield
    optimizer.step()


def by_gradgate(model, optimizer, x):
    with gg.Accumulator(optimizer).update() as update:
        for part in update.micro_batches(x.chunk(PARTS)):
            update.backward(F.mse_loss(model(part), 2 * part), count=part.numel())
            yield


def gradients_and_weights(way):
    """Return the gradient and the weight after each backward pass, then the weight after the step."""
    weight = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    gradients, weights = [], []
    for _ in way(lambda x: weight * x, optimizer, torch.tensor([4.0, 2.0])):
        gradients.append(weight.grad.item())
        weights.append(weight.item())
    return gradients, [*weights, weight.item()]


def peak_bytes(way):
    """Return the peak memory of an update of a deeper network: 32 layers, 2048 samples, 0.25 MiB per layer."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(32) for layer in (nn.Linear(32, 32), nn.Tanh())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(2048, 32)
    with peak_memory() as peak:
        for _ in way(model, optimizer, x):
            pass
    return peak.peak_bytes


def main():
    figures = {}
    print("w = 1, x = (4, 2), y = 2x, mean squared error, SGD with lr 0.01")
    print(f"{'way':16}{'gradient':16}{'weight':16}peak memory of a deeper network")
    for way in (whole_batch, summed_list, accumulated, by_gradgate):
        gradients, weights = gradients_and_weights(way)
        peak = peak_bytes(way)
        figures[way.__name__] = {"gradients": gradients, "weights": weights, "peak_bytes": peak}
        gradient = ", then ".join(f"{g:g}" for g in gradients)
        weight = " -> ".join(f"{w:g}" for w in weights)
        print(f"{way.__name__:16}{gradient:16}{weight:16}{peak / 2**20:.1f} MiB")
    return figures


if __name__ == "__main__":
    main()
