"""``requires_grad_(False)`` in the middle stops nothing: the middle gets no gradient, and the front gets its
own, through it. So what freezing saves depends on where. A frozen front keeps nothing for backward. A frozen
middle lets go only of what its weights' gradients alone needed: the inputs of its linear layers.

That may be nothing. GELU keeps its input, and the linear layer behind it keeps GELU's output: two tensors,
and freezing lets go of one. Tanh keeps its output, as ReLU does, and that is the next layer's input: one
tensor for both, and freezing lets go of none.

Detached behind the middle, front and middle get None. Their graph is built all the same and then thrown
away, and the peak may lie there, in the forward pass. Run them under ``torch.no_grad()``, or freeze both.
"""

import torch
from torch import nn

import gradgate as gg
from gradgate.planning import peak_memory

LAYERS, WIDTH, SAMPLES = 4, 64, 4096  # 4 layers in each of the three parts; an activation takes 1 MiB


def nothing_frozen(front, middle, back, x):
    return back(middle(front(x)))


def front_frozen(front, middle, back, x):
    front.requires_grad_(False)
    return back(middle(front(x)))


def middle_frozen(front, middle, back, x):
    middle.requires_grad_(False)
    return back(middle(front(x)))


def middle_by_gradgate(front, middle, back, x):
    gg.frozen(middle)  # returns a handle: handle.unfreeze() ends it
    return back(middle(front(x)))


def detached_behind_middle(front, middle, back, x):
    return back(middle(front(x)).detach())


def one_pass(way, activation):
    """Which parts get a gradient, the bytes that wait for backward, and the most bytes at once."""
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
    ways = (nothing_frozen, front_frozen, middle_frozen, middle_by_gradgate, detached_behind_middle)
    figures = {}
    print(f"{'':26}{'gradient':24}kept for backward, peak in MiB")
    print(f"{'':26}{'front':8}{'middle':8}{'back':8}{'GELU':12}Tanh")
    for way in ways:
        reached, *gelu = one_pass(way, nn.GELU)
        _, *tanh = one_pass(way, nn.Tanh)
        figures[way.__name__] = {"reached": reached, "GELU": gelu, "Tanh": tanh}
        gradients = "".join(f"{'yes' if one else 'None':8}" for one in reached)
        with_gelu, with_tanh = (f"{kept / 2**20:.0f}, {peak / 2**20:.1f}" for kept, peak in (gelu, tanh))
        print(f"  {way.__name__:24}{gradients}{with_gelu:12}{with_tanh}")
    return figures


if __name__ == "__main__":
    main()
