"""The accumulator counts past its limit before it steps (count > n), so five micro-batches divided by four go into every update."""

import torch
from torch import nn


class GradAccumulator:
    """Wraps an optimizer so that one update uses several micro-batches."""

    def __init__(self, optimizer, n):
        self.optimizer = optimizer
        self.n = n
        self.count = 0
        self.updates = 0

    def backward(self, loss):
        (loss / self.n).backward()
        self.count += 1
        if self.count > self.n:  # expect: accumulation-window
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.count = 0
            self.updates += 1


class PriceModel(nn.Module):
    def __init__(self, n_numeric, n_zip):
        super().__init__()
        self.zip_emb = nn.Embedding(n_zip, 4)
        self.body = nn.Sequential(nn.Linear(n_numeric + 4, 32), nn.GELU(), nn.Linear(32, 16), nn.GELU())
        self.out = nn.Linear(16, 1)

    def forward(self, numeric, zipcode):
        h = torch.cat([numeric, self.zip_emb(zipcode)], dim=-1)
        return self.out(self.body(h)).squeeze(-1)


def make_houses(n, generator):
    numeric = torch.randn(n, 6, generator=generator)
    zipcode = torch.randint(0, 5, (n,), generator=generator)
    effect = torch.tensor([0.5, -1.0, 0.2, 1.5, 0.0])
    price = numeric @ torch.tensor([1.0, 0.3, -0.7, 0.0, 0.4, 0.1]) + effect[zipcode]
    return numeric, zipcode, price + 0.1 * torch.randn(n, generator=generator)


def iterate(data, batch_size, generator):
    order = torch.randperm(len(data[0]), generator=generator)
    for chunk in order.split(batch_size):
        yield tuple(t[chunk] for t in data)


@torch.no_grad()
def rmse(model, data):
    model.eval()
    numeric, zipcode, price = data
    err = (model(numeric, zipcode) - price).pow(2).mean().sqrt().item()
    model.train()
    return err


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(1)
    train, valid = make_houses(320, g), make_houses(96, g)

    model = PriceModel(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    accumulator = GradAccumulator(optimizer, n=4)
    criterion = nn.SmoothL1Loss()

    for epoch in range(3):
        for numeric, zipcode, price in iterate(train, 16, g):
            accumulator.backward(criterion(model(numeric, zipcode), price))
        print(f"[{epoch}] updates={accumulator.updates} valid rmse={rmse(model, valid):.3f}")


if __name__ == "__main__":
    main()
