"""Gradients add up: ``backward`` adds to ``.grad`` instead of overwriting it, until something clears it.

Three passes over one batch leave three times its gradient, which is a sum, not a mean. The mean needs a count.
``.grad`` doesn't hold one, so gradgate keeps the count separately.
"""

import torch
import torch.nn.functional as F

import gradgate as gg


def main():
    x = torch.tensor(0.0, requires_grad=True)
    sine = []
    for _ in range(2):
        torch.sin(x).backward()
        sine.append(x.grad.item())

    weight = torch.tensor(1.0, requires_grad=True)
    batch = torch.tensor([4.0, 2.0])
    passes = []
    for _ in range(3):
        F.mse_loss(weight * batch, 2 * batch).backward()
        passes.append(weight.grad.item())

    weight.grad = None
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=0.01))
    with accumulator.update() as update:
        for micro_batch in update.micro_batches([batch] * 3):
            loss = F.mse_loss(weight * micro_batch, 2 * micro_batch)
            update.backward(loss, count=len(micro_batch))
    norm = float(update.grad_norm)

    print("The slope of sin(x) at x = 0, computed by backward:")
    for n, gradient in enumerate(sine, start=1):
        print(f"  after {n} x backward   x.grad = {gradient:g}")
    print("The gradient of one batch, computed again and again without clearing:")
    for n, gradient in enumerate(passes, start=1):
        print(f"  after {n} x backward   weight.grad = {gradient:g} = {n} x {passes[0]:g}")
    print("The same three passes as one update with gradgate:")
    print(f"  |gradient| = {norm:g}, the mean; weight 1 -> {weight.item():g}")
    return {"sine": sine, "passes": passes, "update_norm": norm, "update_weight": weight.item()}


if __name__ == "__main__":
    main()
