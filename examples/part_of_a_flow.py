"""The finest control: scale the gradient of one module, give it its own learning rate, or train only some rows.

Scaling a gradient scales SGD's step but not Adam's, because Adam divides by the size of the gradient. For Adam,
use a learning rate. Under Adam or weight decay, masking a gradient doesn't keep rows still; ``train_rows`` does.
"""

import torch
from torch import nn

import gradgate as gg

OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


def two_layers():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[1].weight.fill_(3.0)
    return model


def moves(model, optimizer):
    """Return how far one step on the output, 2 x 3 = 6 at x = 1, moves the two weights."""
    before = [weight.item() for weight in model.parameters()]
    model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
    optimizer.step()
    return [round(was - weight.item(), 6) for was, weight in zip(before, model.parameters(), strict=True)]


def scaled_gradient(make):
    model = two_layers()
    with gg.scaled(model[0], factor=0.1):
        return moves(model, make(model.parameters(), lr=0.01))


def own_learning_rate(make):
    model = two_layers()
    return moves(model, make(gg.param_groups(model, {"0": 0.1}, lr=0.01)))


def masked_gradient(embedding, rows):
    mask = torch.zeros_like(embedding.weight)
    mask[rows] = 1.0
    embedding.weight.register_hook(lambda gradient: gradient * mask)


def rows_that_moved(restrict, **options):
    """Train only rows 3 and 4 of 5 after two steps. Return the rows that still move, and the size of the state."""
    torch.manual_seed(0)
    embedding = nn.Embedding(5, 2)
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=0.1, **options)
    for step in range(4):
        if step == 2:
            restrict(embedding, [3, 4])
            before = embedding.weight.detach().clone()
        optimizer.zero_grad()
        embedding(torch.arange(5)).square().sum().backward()
        optimizer.step()
    moved = (embedding.weight != before).any(1)
    state = optimizer.state[embedding.weight]
    elements = state["exp_avg"].numel() + state["exp_avg_sq"].numel()
    return moved.nonzero()[:, 0].tolist(), elements


def main():
    figures = {}
    print("One step on 2 x 3, lr 0.01; the first layer should learn at a tenth of that")
    for name, make in OPTIMIZERS.items():
        for way in (scaled_gradient, own_learning_rate):
            figures[name, way.__name__] = moved = way(make)
            print(f"  {name:5} {way.__name__:17} the layers move by {moved[0]:g} and {moved[1]:g}")
    print("AdamW with weight decay; from the third step on, only rows 3 and 4 of 5 should learn")
    for way in (masked_gradient, gg.train_rows):
        figures[way.__name__] = rows, elements = rows_that_moved(way, weight_decay=0.1)
        print(f"  {way.__name__:16} rows {rows} move, {elements} elements of optimizer state")
    return figures


if __name__ == "__main__":
    main()
