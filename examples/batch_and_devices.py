"""The gradient of a mean loss is the mean of its items' gradients, whatever the batch size. The gradient of a
summed loss is their sum and grows with the batch. With a mean loss, a larger batch changes only the noise of the
gradient, so the learning rate may grow with the batch: linearly, or with its square root.

gradgate needs to know whether a loss is a mean or a sum. In both cases, the optimizer receives the mean over all
items.
"""

import torch
import torch.nn.functional as F

import gradgate as gg

BATCH = torch.tensor([4.0, 2.0], dtype=torch.float64)


def new_weight():
    return torch.tensor(1.0, dtype=torch.float64, requires_grad=True)


def gradient(x, reduction):
    weight = new_weight()
    F.mse_loss(weight * x, 2 * x, reduction=reduction).backward()
    return weight.grad.item()


def updated_weight(reduction):
    """Return the weight after one update with lr 0.01 and micro-batches of one item."""
    weight = new_weight()
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=0.01))
    with accumulator.update() as update:
        for x in update.micro_batches(BATCH.split(1)):
            loss = F.mse_loss(weight * x, 2 * x, reduction=reduction)
            update.backward(loss, count=len(x), reduction=reduction)
    return weight.item()


def weight_after(steps, lr):
    weight = new_weight()
    optimizer = torch.optim.SGD([weight], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(weight * BATCH, 2 * BATCH).backward()
        optimizer.step()
    return weight.item()


def warmed_up(rule):
    """Return the factor by which the rate grows from batches of 256 to 4096, and the rates of the warm-up."""
    optimizer = torch.optim.SGD([new_weight()], lr=0.1)
    factor = gg.scale_lr(optimizer, batch=4096, base_batch=256, rule=rule)
    scheduler = gg.warmup(optimizer, updates=5, factor=factor)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factor, rates


def main():
    items = [gradient(x, "mean") for x in BATCH.split(1)]
    batch = {reduction: gradient(BATCH, reduction) for reduction in ("mean", "sum")}
    updated = {reduction: updated_weight(reduction) for reduction in ("mean", "sum")}
    steps = {"4 steps, lr 0.001": weight_after(4, 0.001), "1 step, lr 0.004": weight_after(1, 0.004)}
    rules = {rule: warmed_up(rule) for rule in ("linear", "sqrt")}

    print(f"gradients of two items: {items[0]:g} and {items[1]:g}")
    for reduction, value in batch.items():
        print(f"  {reduction:5} loss of both: {value:g}")
        print(f"        with gradgate, one at a time, lr 0.01: weight 1 -> {updated[reduction]:g}")
    print("four small steps, or one of four times the batch and four times the learning rate:")
    for name, weight in steps.items():
        print(f"  {name}: weight 1 -> {weight:.4f}")
    print("batch 256 -> 4096, learning rate 0.1, five updates of warm-up:")
    for rule, (factor, rates) in rules.items():
        print(f"  {rule:8}x {factor:<4g}{', '.join(f'{rate:g}' for rate in rates)}")
    return {"items": items, "batch": batch, "updated": updated, "steps": steps, "rules": rules}


if __name__ == "__main__":
    main()
