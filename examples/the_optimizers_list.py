"""An optimizer doesn't move parameters that are not in its list, or that have lr=0. But autograd doesn't know the
list: if ``requires_grad`` is True, it computes and stores their gradients, here for nothing.

If parameters are left out, their gradients are not even cleared, because ``optimizer.zero_grad()`` iterates over
the same list. The gradients grow. At lr=0, Adam stores and updates two averages for each parameter.
``gg.Accumulator`` runs the backward pass only for the parameters that its optimizer owns. The forward pass doesn't
know that, and stores activations for a backward pass that never comes. Freezing avoids these, too. In all cases,
batch norms keep updating their statistics, unless ``gg.frozen`` freezes them.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gradgate as gg
from gradgate.planning import peak_memory

WIDTH, CLASSES, SAMPLES = 500, 10, 100  # 1 MB of weights per layer, 0.2 MB per activation

# Each function prepares the trunk, which should not learn, and returns the parameters for Adam.


def left_out(trunk, head):
    return head.parameters()


def at_lr_0(trunk, head):
    return [{"params": trunk.parameters(), "lr": 0.0}, {"params": head.parameters()}]


def requires_no_grad(trunk, head):
    trunk.requires_grad_(False)
    return head.parameters()


def frozen(trunk, head):
    gg.frozen(trunk)  # returns a handle; handle.unfreeze() undoes it
    return head.parameters()


def by_hand(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def by_gradgate(optimizer, loss):
    with gg.Accumulator(optimizer).update() as update:
        update.backward(loss, count=SAMPLES)


WAYS = {
    "left out": (left_out, by_hand),
    "lr=0": (at_lr_0, by_hand),
    "left out, gg.Accumulator": (left_out, by_gradgate),
    "requires_grad_(False)": (requires_no_grad, by_hand),
    "gg.frozen": (frozen, by_hand),
}


def one_update(prepare, updated):
    layers = [part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
    norm = nn.BatchNorm1d(WIDTH, affine=False)
    trunk, head = nn.Sequential(*layers, norm), nn.Linear(WIDTH, CLASSES, bias=False)
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    before = nn.utils.parameters_to_vector(trunk.parameters()).detach()
    optimizer = torch.optim.Adam(prepare(trunk, head))

    def gradient_bytes():
        return sum(p.grad.nbytes for p in (*trunk.parameters(), *head.parameters()) if p.grad is not None)

    at_the_step = []
    optimizer.register_step_pre_hook(lambda *_: at_the_step.append(gradient_bytes()))
    with peak_memory() as memory:
        loss = F.cross_entropy(head(trunk(x)), y)
        kept_bytes = memory.live_bytes
    with FlopCounterMode(display=False) as work:
        updated(optimizer, loss)
    averages = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    average_bytes = sum(average.nbytes for average in averages if average.any())  # they start at 0
    return {
        "bytes": (kept_bytes, at_the_step[0], gradient_bytes(), average_bytes),
        "backward_flops": work.get_total_flops(),
        "norm_moved": norm.num_batches_tracked.item() > 0,
        "trunk_moved": (nn.utils.parameters_to_vector(trunk.parameters()) - before).abs().max().item(),
    }


def main():
    figures = {name: one_update(*way) for name, way in WAYS.items()}
    print("a trunk of 4 MB that should not learn, and a head of 0.02 MB that should")
    print(f"{'':28}forward   backward  .grad at   .grad      averages   norm's      trunk")
    print(f"{'the trunk is':28}saves MB  MFLOP     step, MB   after, MB  moved, MB  statistics  moved by")
    for name, figure in figures.items():
        kept, at_the_step, after, averages = (part / 1e6 for part in figure["bytes"])
        norm = "moved" if figure["norm_moved"] else "still"
        print(
            f"  {name:26}{kept:<10.2f}{figure['backward_flops'] / 1e6:<10g}{at_the_step:<11.2f}{after:<11.2f}"
            f"{averages:<11.2f}{norm:12}{figure['trunk_moved']:g}"
        )
    return figures


if __name__ == "__main__":
    main()
