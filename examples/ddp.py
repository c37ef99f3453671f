"""DistributedDataParallel sums gradients over ranks and divides by the number of ranks, whatever number of items
each rank held. So you get the mean over all items only if every rank and every micro-batch holds the same number.
Here, the last micro-batch of one rank is shorter, and its items get too much weight. gradgate keeps DDP from
communicating while a window accumulates, sums gradients and counts over ranks once per update, and divides once, by
all items.

    torchrun --nproc-per-node 2 examples/ddp.py     # one process per GPU; without GPUs, two on the CPU
    python examples/ddp.py                          # starts the processes itself
"""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

import gradgate as gg

MICRO_BATCH, STEPS = 32, 3  # per rank and update: three micro-batches
SHORT_BY = 24  # the last micro-batch of the last rank


def start():
    """Join the ranks that torchrun started: with NCCL if each has its own GPU, otherwise with gloo on the CPU."""
    device = torch.device("cpu")
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        device = torch.accelerator.current_accelerator()
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return device


def micro_batches_of(batch, rank):
    """Return one rank's micro-batches of a batch. The last ranks may get fewer, or none."""
    parts = [part.split(MICRO_BATCH) for part in batch.split(STEPS * MICRO_BATCH)]
    return parts[rank] if rank < len(parts) else ()


def new_model(device):
    model = nn.Linear(64, 10, dtype=torch.float64, device=device)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def relative_error(found, right):
    return float((found - right).abs().max() / right.abs().max())


def whole_batch(x, y, batches, lr):
    """Train in one process on whole batches, and return the weights."""
    model = new_model(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model.weight.detach()


def plain_loop(x, y, batches, lr):
    """Train with a usual, well-written DDP loop: ``no_sync``, and losses divided by the number of micro-batches."""
    ddp = DistributedDataParallel(new_model(x.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        own = micro_batches_of(batch, dist.get_rank())
        for number, rows in enumerate(own, start=1):
            with nullcontext() if number == len(own) else ddp.no_sync():
                (F.cross_entropy(ddp(x[rows]), y[rows]) / len(own)).backward()
        optimizer.step()
    return ddp.module.weight.detach()


def by_gradgate(x, y, batches, lr):
    ddp = DistributedDataParallel(new_model(x.device))
    accumulator = gg.Accumulator(torch.optim.SGD(ddp.parameters(), lr=lr), model=ddp)
    for batch in batches:
        with accumulator.update() as update:
            for rows in update.micro_batches(micro_batches_of(batch, dist.get_rank())):
                update.backward(F.cross_entropy(ddp(x[rows]), y[rows]), count=len(rows))
    return ddp.module.weight.detach()


def work():
    """Run on each rank. Return the figures, which are the same on all ranks."""
    device = start()
    ranks = dist.get_world_size()
    x, y = (torch.from_numpy(part).to(device) for part in load_digits(return_X_y=True))
    x = x / 16
    batches = torch.arange(len(y), device=device).split(ranks * STEPS * MICRO_BATCH - SHORT_BY)
    # Starting from zero with lr 1, the first step is the gradient.
    first = {"batches": batches[:1], "lr": 1.0}
    epoch = {"batches": batches, "lr": 0.5}
    sizes = [[len(rows) for rows in micro_batches_of(batches[0], rank)] for rank in range(ranks)]
    # The weight of an item in the mean of means, relative to the right weight, 1 / batch.
    weights = [len(batches[0]) / (ranks * STEPS * size) for size in (MICRO_BATCH, sizes[-1][-1])]
    figures = {
        "ranks": (ranks, device.type, dist.get_backend()),
        "sizes": sizes,
        "weights": weights,
        "plain": relative_error(plain_loop(x, y, **first), whole_batch(x, y, **first)),
        "gradgate": relative_error(by_gradgate(x, y, **first), whole_batch(x, y, **first)),
        "epoch": relative_error(by_gradgate(x, y, **epoch), whole_batch(x, y, **epoch)),
        "updates": len(batches),
    }
    dist.destroy_process_group()
    return figures


def here(ranks):
    """Configure a launch like ``torchrun --standalone``: ``ranks`` processes on this machine, on a free port."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="ddp",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )


def show(figures):
    ranks, device, backend = figures["ranks"]
    items = sum(map(sum, figures["sizes"]))
    full, short = figures["weights"]
    print(f"{ranks} ranks ({device}, {backend}); the first {items} digits, for one update:")
    for rank, sizes in enumerate(figures["sizes"]):
        print(f"  rank {rank} takes {', '.join(map(str, sizes))}")
    print("How far the first update is from that of the whole batch:")
    print(f"  plain DDP loop   {figures['plain']:.2f}")
    print(f"    a digit of the shortest micro-batch weighs {short:.3f} times, the others {full:.3f} times")
    print(f"  gradgate         {figures['gradgate']:.0e}")
    print(f"How far the weights are from those of one process after {figures['updates']} updates, an epoch:")
    print(f"  gradgate         {figures['epoch']:.0e}")


def main():
    if "LOCAL_RANK" in os.environ:  # under torchrun: this process is one of the ranks
        figures = work()
    else:
        ranks = max(2, torch.accelerator.device_count())
        print(f"No torchrun: starting {ranks} processes here")
        figures = elastic_launch(here(ranks), work)()[0]
    if os.environ.get("RANK", "0") == "0":
        show(figures)
    return figures


if __name__ == "__main__":
    main()
