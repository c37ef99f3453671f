"""``requires_grad_(False)`` in the middle doesn't stop the gradient: the middle gets none of its own, and the front
gets its gradient through it. What freezing saves therefore depends on the position. A frozen front stores nothing
for backward. A frozen middle only drops what its weights' gradients need: the inputs of its linear layers.

These inputs may be stored anyway. GELU stores its input, and the linear layer after it stores GELU's output: two
tensors, one of which freezing drops. Tanh stores its output, as ReLU does, and that is also the input of the next
layer: one tensor for both, which freezing can't drop.

With a detach after the middle, front and middle get None. Their graph is still built and then discarded, and memory
may peak there, in the forward pass. Run them under ``torch.no_grad()`` instead, or freeze both.
"""

import torch
from torch import nn

import gradgate as gg
from gradgate.planning import peak_memory

LAYERS, WIDTH, SAMPLES = 4, 64, 4096  # 4 layers in each of the three parts; 1 MiB per activation


def nothing_frozen(front, middle, back, x):
    return back(middle(front(x)))


def front_frozen(front, middle, back, x):
    front.requires_grad_(False)
    return back(middle(front(x)))


def middle_frozen(front, middle, back, x):
    middle.requires_grad_(False)
    return back(middle(front(x)))


def middle_by_gradgate(front, middle, back, x):
    gg.frozen(middle)  # returns a handle; handle.unfreeze() undoes it
    return back(middle(front(x)))


def detached_after_middle(front, middle, back, x):
    return back(middle(front(x)).detach())


def one_pass(way, activation):
    """Return which parts get a gradient, the bytes saved for backward, and the peak bytes."""
    parts = [
        nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), activation())])
        for _ in range(3)
    ]
    x = torch.randn(SAMPLES, WIDTH)
    with peak_memory() as memory:
        loss = way(*parts, x).square().mean()
        kept_bytes = memory.live_bytes
        loss.backward()
    reached = [all(p.grad is not None for p in part.parameters()) for part in parts]
    return reached, kept_bytes, memory.peak_bytes


def main():
    ways = (nothing_frozen, front_frozen, middle_frozen, middle_by_gradgate, detached_after_middle)
    figures = {}
    print(f"{'':26}{'gradient':24}saved for backward, peak in MiB")
    print(f"{'':26}{'front':8}{'middle':8}{'back':8}{'GELU':12}Tanh")
    for way in ways:
        reached, *gelu = one_pass(way, nn.GELU)
        _, *tanh = one_pass(way, nn.Tanh)
        figures[way.__name__] = {"reached": reached, "GELU": gelu, "Tanh": tanh}
        gradients = "".join(f"{'yes' if got_gradient else 'None':8}" for got_gradient in reached)
        with_gelu, with_tanh = (f"{kept / 2**20:.0f}, {peak / 2**20:.1f}" for kept, peak in (gelu, tanh))
        print(f"  {way.__name__:24}{gradients}{with_gelu:12}{with_tanh}")
    return figures


if __name__ == "__main__":
    main()
