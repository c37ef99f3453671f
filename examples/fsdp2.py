"""``fully_shard`` (FSDP2) shards parameters, gradients and optimizer state. It averages gradients over ranks,
however many items each rank held, as DistributedDataParallel does. gradgate makes it sum gradients instead,
in the last micro-batch (``sync="last"``) or in every one. gradgate then divides once, by all items. Ranks may have
micro-batches of unequal size, and even unequal numbers of micro-batches, which would deadlock a plain loop.

    torchrun --nproc-per-node 2 examples/fsdp2.py   # one process per GPU; without GPUs, two on the CPU
    python examples/fsdp2.py                        # starts the processes itself
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import gradgate as gg

MICRO_BATCH, STEPS = 32, 3  # per rank and update: three micro-batches
SHORT_BY = (24, 32 + 24)  # items missing on the last rank, by update: first 24, then also a whole micro-batch


def start():
    """Join the ranks that torchrun started: with NCCL if each has its own GPU, otherwise with gloo on the CPU."""
    device = torch.device("cpu")
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        device = torch.accelerator.current_accelerator()
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return device


def micro_batches_of(batch, rank):
    """Return one rank's micro-batches of a batch."""
    return batch.split(STEPS * MICRO_BATCH)[rank].split(MICRO_BATCH)


def new_model(device):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    return layers.to(device, torch.float64)


def sharded(device):
    """Return a model whose layers are sharded separately, so that only one is gathered at a time."""
    model = new_model(device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*(layer for layer in model if isinstance(layer, nn.Linear)), model):
        fully_shard(part, mesh=mesh)
    return model


def weights(model):
    """Gather all parameters into one vector."""
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def relative_error(found, right):
    return float((found - right).abs().max() / right.abs().max())


def whole_batch(x, y, batches):
    """Train in one process on whole batches, and return the weights."""
    model = new_model(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return weights(model)


def plain_loop(x, y, batches):
    """Train with a well-written FSDP2 loop: synchronize once, divide losses by the number of micro-batches."""
    model = sharded(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for batch in batches:
        optimizer.zero_grad()
        own = micro_batches_of(batch, dist.get_rank())
        for number, rows in enumerate(own, start=1):
            model.set_requires_gradient_sync(number == len(own))
            (F.cross_entropy(model(x[rows]), y[rows]) / len(own)).backward()
        optimizer.step()
    return weights(model)


def by_gradgate(x, y, batches, sync):
    model = sharded(x.device)
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0), model=model, sync=sync)
    for batch in batches:
        with accumulator.update() as update:
            for rows in update.micro_batches(micro_batches_of(batch, dist.get_rank())):
                update.backward(F.cross_entropy(model(x[rows]), y[rows]), count=len(rows))
    return weights(model)


def work():
    """Run on each rank. Return the figures of rank 0."""
    device = start()
    ranks = dist.get_world_size()
    x, y = (torch.from_numpy(part).to(device) for part in load_digits(return_X_y=True))
    x = x / 16
    sizes = [ranks * STEPS * MICRO_BATCH - less for less in SHORT_BY]
    batches = torch.arange(sum(sizes), device=device).split(sizes)
    model = sharded(device)
    before = weights(model)
    step, steps = (whole_batch(x, y, batches[:n]) - before for n in (1, 2))
    figures = {
        "ranks": (ranks, device.type, dist.get_backend()),
        "held": (sum(parameter.to_local().numel() for parameter in model.parameters()), len(before)),
        "sizes": [
            [[len(rows) for rows in micro_batches_of(batch, rank)] for rank in range(ranks)]
            for batch in batches
        ],
        "plain": relative_error(plain_loop(x, y, batches[:1]) - before, step),
        "gradgate": {
            sync: relative_error(by_gradgate(x, y, batches[:1], sync) - before, step)
            for sync in ("last", "every")
        },
        "uneven": relative_error(by_gradgate(x, y, batches, "last") - before, steps),
    }
    dist.destroy_process_group()
    return figures


def here(ranks):
    """Configure a launch like ``torchrun --standalone``: ``ranks`` processes on this machine, on a free port."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="fsdp2",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )


def show(figures):
    ranks, device, backend = figures["ranks"]
    held, total = figures["held"]
    print(f"{ranks} ranks ({device}, {backend}); rank 0 holds {held} of {total} parameters")
    for update, sizes_by_rank in enumerate(figures["sizes"], start=1):
        print(f"update {update}, of {sum(map(sum, sizes_by_rank))} digits:")
        for rank, sizes in enumerate(sizes_by_rank):
            print(f"  rank {rank} takes {', '.join(map(str, sizes))}")
    print("How far the first update is from that of the whole batch:")
    print(f"  plain FSDP2 loop   {figures['plain']:.2f}")
    for sync, error in figures["gradgate"].items():
        print(f"  gradgate, sync={sync!r:9}{error:.0e}")
    print("and both updates together, with one micro-batch fewer on the last rank:")
    print(f"  gradgate           {figures['uneven']:.0e}")


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
