"""Train on a batch of 1,000 images in the memory of 72. The plan estimates from shapes alone how many images fit
next to parameters, gradients and Adam's state, and splits the batch evenly. The update is that of the whole batch.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg
from gradgate.planning import peak_memory

BATCH = 1000


def convolutional():
    torch.manual_seed(0)
    # GroupNorm treats images independently, so any split is exact.
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).double()


def main():
    x, y = load_digits(return_X_y=True)
    batch = torch.from_numpy(x[:BATCH] / 16).reshape(-1, 1, 8, 8), torch.from_numpy(y[:BATCH])

    def updated(budget_bytes):
        """Return the parameters after one update, its peak memory, and the plan."""
        model = convolutional()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def loss_fn(micro):
            images, digits = micro
            return F.cross_entropy(model(images), digits), len(digits)

        plan = gg.plan(loss_fn, batch, budget_bytes=budget_bytes, optimizer=optimizer)
        with peak_memory() as memory:
            gg.Accumulator(optimizer).step(loss_fn, batch, plan=plan)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), memory.peak_bytes, plan

    whole, whole_peak, _ = updated("1GiB")
    split, split_peak, plan = updated("6MiB")
    print(plan)
    error = float((split - whole).abs().max() / whole.abs().max())
    sizes = [len(part.indices) for part in plan.parts]
    print(
        f"\npeak of the update: all at once {whole_peak / 2**20:.1f} MiB, by plan {split_peak / 2**20:.2f} MiB"
    )
    print(f"largest relative difference of a parameter: {error:.0e}")
    return {
        "sizes": sizes,
        "peaks": (whole_peak, split_peak),
        "error": error,
        "budget": plan.budget_bytes,
        "estimated": plan.resident.total_bytes + max(part.peak_bytes for part in plan.parts),
    }


if __name__ == "__main__":
    main()
