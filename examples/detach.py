"""``detach`` removes one edge of the graph: the value is passed on, but no gradient flows back along that edge.
Other paths still count. A layer without any other path gets no gradient at all: ``None``, not zero.

``gg.stop_gradient`` does the same, also works on pytrees, and its name shows the intent.
"""

import torch
from torch import nn

import gradgate as gg

STOPS = {"no stop": lambda z: z, "z.detach()": lambda z: z.detach(), "gg.stop_gradient(z)": gg.stop_gradient}


def slope(stop):
    """Return the value and the slope of w = z^3 + 2z at x = 1, where y = x^2 and z = 2y."""
    x = torch.tensor(1.0, requires_grad=True)
    y = x**2
    z = 2 * y
    w = z**3 + 2 * stop(z)  # stops only the side branch
    w.backward()
    return w.item(), x.grad.item()


def layers(stop):
    """Return the gradients of two layers with weights 3 and 5 at x = 2, with a stop after the first."""
    front, back = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.constant_(front.weight, 3.0)
    nn.init.constant_(back.weight, 5.0)
    z = front(torch.tensor([2.0]))
    back(stop(z)).backward()
    return [None if layer.weight.grad is None else layer.weight.grad.item() for layer in (front, back)]


def main():
    slopes = {name: slope(stop) for name, stop in STOPS.items()}
    print(f"{'w = z^3 + 2z, stop at 2z':26}{'w':6}dw/dx at x = 1")
    for name, (value, gradient) in slopes.items():
        print(f"  {name:24}{value:<6g}{gradient:g}")

    gradients = {name: layers(stop) for name, stop in STOPS.items()}
    print(f"\n{'back(stop(front(2)))':26}{'front.weight.grad':20}back.weight.grad")
    for name, (front, back) in gradients.items():
        print(f"  {name:24}{front!s:20}{back}")
    return {"slopes": slopes, "gradients": gradients}


if __name__ == "__main__":
    main()
