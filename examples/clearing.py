"""Clearing decides what the next gradient is added to: nothing (None), zero, or a fraction of the last gradient.

After None or zero, the next backward pass computes the same gradient. But an optimizer skips parameters whose
gradient is None, whereas momentum, Adam's averages and weight decay still move parameters whose gradient is zero.
None also frees the memory. A decay of 0.5 is momentum 0.5, kept in ``.grad`` itself.
"""

import torch
import torch.nn.functional as F

import gradgate as gg

CLEARS = {
    "none": {"clear": "none"},
    "zero": {"clear": "zero"},
    "decay(0.5)": {"clear": gg.decay(0.5)},
    "none, momentum 0.5": {"clear": "none", "momentum": 0.5},
}
LR = 0.1
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=LR),
    "SGD, weight decay 0.5": lambda p: torch.optim.SGD(p, lr=LR, weight_decay=0.5),
    "SGD, momentum 0.9": lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=LR),
    "AdamW, weight decay 0.5": lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.5),
}


def three_updates(clear, momentum=0.0):
    """Return how far each of three updates with gradient 8 moves the weights, and the bytes left in .grad."""
    weight = torch.zeros(1_000_000, requires_grad=True)
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=1.0, momentum=momentum), clear=clear)
    moved = []
    for _ in range(3):
        before = weight[0].item()
        with accumulator.update() as update:
            update.backward(8 * weight.sum(), count=1)
        moved.append(before - weight[0].item())
    return moved, 0 if weight.grad is None else weight.grad.nbytes


def idle_step(make_optimizer, gradient):
    """Take one step from 1 with gradient 1. Return how far the next step, without a loss, moves the weight."""
    weight = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    optimizer = make_optimizer([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    after_one = weight.item()
    weight.grad = gradient
    optimizer.step()
    return weight.item() - after_one


def vanilla(clears):
    """Run gradient descent without an optimizer, with x = (4, 2) and y = 2x, so the weight should approach 2."""
    W = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([4.0, 2.0], dtype=torch.float64)
    weights = []
    for _ in range(3):
        F.mse_loss(W * x, 2 * x).backward()
        with torch.no_grad():  # keeps the update out of the graph
            W -= 0.01 * W.grad
        if clears:
            W.grad = None
        weights.append(W.item())
    return weights


def main():
    updates = {name: three_updates(**options) for name, options in CLEARS.items()}
    print("a million weights, three updates of gradient 8, lr 1")
    print(f"{'clear':30}{'moved by':14}.grad between the updates")
    for name, (moved, held) in updates.items():
        print(f"  {name:28}{', '.join(f'{m:g}' for m in moved):14}{held / 1e6:g} MB")

    zero = torch.tensor(0.0, dtype=torch.float64)
    idle = {name: (idle_step(make, None), idle_step(make, zero.clone())) for name, make in OPTIMIZERS.items()}
    print(f"\n{'a step without a loss moves':30}{'.grad None':14}.grad 0")
    for name, (by_none, by_zero) in idle.items():
        print(f"  {name:28}{by_none:<14g}{by_zero:g}")

    loops = {"cleared": vanilla(clears=True), "never cleared": vanilla(clears=False)}
    print("\nW -= lr * W.grad, three times, towards 2")
    for name, weights in loops.items():
        print(f"  {name:28}{', '.join(f'{w:g}' for w in weights)}")
    return {"updates": updates, "idle": idle, "vanilla": loops}


if __name__ == "__main__":
    main()
