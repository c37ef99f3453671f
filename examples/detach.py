"""``detach`` cuts one edge of the graph: the value goes on, the gradient does not come back along it. Paths
that go around the cut still count. What lies on no other path gets no gradient at all: ``None``, not zero.

``gg.stop_gradient`` is the same cut, for nests of tensors too, and a name that says it is meant.
"""

import torch
from torch import nn

import gradgate as gg

CUTS = {"no cut": lambda z: z, "z.detach()": lambda z: z.detach(), "gg.stop_gradient(z)": gg.stop_gradient}


def slope(cut):
    """The value and the slope of w = z^3 + 2z at x = 1, where y = x^2 and z = 2y."""
    x = torch.tensor(1.0, requires_grad=True)
    y = x**2
    z = 2 * y
    w = z**3 + 2 * cut(z)  # the side branch alone is cut
    w.backward()
    return w.item(), x.grad.item()


def layers(cut):
    """The gradients of two layers with weights 3 and 5, at x = 2, the output of the first being cut."""
    front, behind = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.constant_(front.weight, 3.0)
    nn.init.constant_(behind.weight, 5.0)
    z = front(torch.tensor([2.0]))
    behind(cut(z)).backward()
    return [None if layer.weight.grad is None else layer.weight.grad.item() for layer in (front, behind)]


def main():
    slopes = {name: slope(cut) for name, cut in CUTS.items()}
    print(f"{'w = z^3 + 2z, the 2z cut':26}{'w':6}dw/dx at x = 1")
    for name, (value, gradient) in slopes.items():
        print(f"  {name:24}{value:<6g}{gradient:g}")

    gradients = {name: layers(cut) for name, cut in CUTS.items()}
    print(f"\n{'behind(front(2)), cut':26}{'front.weight.grad':20}behind.weight.grad")
    for name, (front, behind) in gradients.items():
        print(f"  {name:24}{front!s:20}{behind}")
    return {"slopes": slopes, "gradients": gradients}


if __name__ == "__main__":
    main()
