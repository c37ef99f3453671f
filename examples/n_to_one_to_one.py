"""N : 1 : 1 means N backward passes, then one step, then one clear. The step comes *after* the last of the N.

``if i % N == 0`` steps after the first micro-batch, and never steps the remainder at the end of the epoch. Without
a division, the sum is N times too large. Here, micro-batch n has gradient n, so you can see what each step used.
"""

import torch

import gradgate as gg

N = 4
MICRO_BATCHES = [torch.tensor(float(n)) for n in range(1, 11)]


def watched_weight():
    """Return a weight, its optimizer, and the list of gradients that the optimizer received."""
    weight = torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)  # so a step moves the weight by exactly the gradient
    received, before = [], [0.0]

    def record(*_):
        received.append(before[-1] - weight.item())
        before.append(weight.item())

    optimizer.register_step_post_hook(record)
    return weight, optimizer, received


def by_hand(is_time_to_step, divisor=1):
    weight, optimizer, received = watched_weight()
    for i, number in enumerate(MICRO_BATCHES):
        (weight * number / divisor).backward()
        if is_time_to_step(i):
            optimizer.step()
            optimizer.zero_grad()
    return received, 0.0 if weight.grad is None else weight.grad.item()


def by_gradgate():
    weight, optimizer, received = watched_weight()
    accumulator = gg.Accumulator(optimizer)
    for window in gg.windows(MICRO_BATCHES, size=N):
        with accumulator.update() as update:
            for number in update.micro_batches(window):
                update.backward(weight * number, count=1)
    return received, 0.0 if weight.grad is None else weight.grad.item()


def main():
    loops = {
        "i % N == 0": by_hand(lambda i: i % N == 0),
        "(i + 1) % N == 0": by_hand(lambda i: (i + 1) % N == 0),
        "(i + 1) % N == 0, loss / N": by_hand(lambda i: (i + 1) % N == 0, divisor=N),
        "gradgate": by_gradgate(),
    }
    print(f"Micro-batches with gradients 1 to {len(MICRO_BATCHES)}, N = {N}")
    print(f"{'loop':28}{'each step received':20}left in .grad")
    for loop, (received, left) in loops.items():
        print(f"{loop:28}{', '.join(f'{g:g}' for g in received):20}{left:g}")
    print("What is left leaks into the first step of the next epoch.")
    return loops


if __name__ == "__main__":
    main()
