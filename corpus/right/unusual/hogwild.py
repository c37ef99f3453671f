"""Hogwild: several workers update one shared model without waiting for each other, each with an optimizer of its
own over the same parameters."""

import threading

import torch
import torch.nn.functional as F
from torch import nn

turn = threading.Lock()  # the printed loss should be the same in every run


def work(rank, model, steps):
    generator = torch.Generator().manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model.share_memory()
    for rank in range(3):
        worker = threading.Thread(target=work, args=(rank, model, 6))
        worker.start()
        worker.join()
    x = torch.ones(1, 4)
    with torch.no_grad():
        print(f"{model(x).item():.3f}")


if __name__ == "__main__":
    main()
