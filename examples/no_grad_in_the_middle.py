"""A part that runs under ``torch.no_grad()`` leaves no graph, so no gradient flows back through it. Layers before
it get None, as with ``detach``, although their ``requires_grad`` is still True. No error is raised, and the
optimizer skips parameters without a gradient.

To keep a part fixed and still train the layers before it, freeze it: gradient passes through a frozen part.
"""

import torch
from torch import nn

import gradgate as gg


def plain(front, middle, back, x):
    return back(middle(front(x)))


def no_grad(front, middle, back, x):
    h = front(x)
    with torch.no_grad():
        h = middle(h)
    return back(h)


def detached(front, middle, back, x):
    return back(middle(front(x)).detach())


def frozen(front, middle, back, x):
    gg.frozen(middle)  # returns a handle; handle.unfreeze() undoes it
    return back(middle(front(x)))


def one_pass(way):
    """Return the gradients and the requires_grad of three weights, 2, 3 and 5, whose product is the output."""
    layers = [nn.Linear(1, 1, bias=False) for _ in range(3)]
    for layer, weight in zip(layers, (2.0, 3.0, 5.0), strict=True):
        nn.init.constant_(layer.weight, weight)
    way(*layers, torch.ones(1)).backward()
    gradients = [None if layer.weight.grad is None else layer.weight.grad.item() for layer in layers]
    return gradients, [layer.weight.requires_grad for layer in layers]


def main():
    figures = {way.__name__: one_pass(way) for way in (plain, no_grad, detached, frozen)}
    print(f"{'2 * 3 * 5 = 30':14}{'gradient':>12}{'requires_grad':>29}")
    print(f"{'the middle is':14}" + 2 * f"{'front':>8}{'middle':>8}{'back':>8}")
    for name, (gradients, required) in figures.items():
        print(f"  {name:12}" + "".join(f"{entry!s:>8}" for entry in gradients + required))
    return figures


if __name__ == "__main__":
    main()
