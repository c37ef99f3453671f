"""``fully_shard`` (FSDP2) cuts parameters, gradients and optimizer state into parts, one for each rank, and
averages gradients over ranks as DistributedDataParallel does: whatever each rank held. gradgate has it add up
instead, at the last micro-batch (``sync="last"``) or at every one, and divides once, by all items. Ranks may bring
unequal micro-batches, and unequal numbers of them, for which a plain loop would wait for ever.

    torchrun --nproc-per-node 2 examples/fsdp2.py   # as many as you have GPUs; without any, two on the CPU
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

MICRO_BATCH, STEPS = 32, 3  # what each rank takes for an update: three micro-batches
SHORT_BY = (24, 32 + 24)  # of the last rank, in two updates: a shorter micro-batch, then one less besides


def start():
    """Join the other ranks, as torchrun tells: by NCCL where each has a GPU of its own, by gloo on the CPU."""
    device = torch.device("cpu")
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        device = torch.accelerator.current_accelerator()
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return device


def micro_batches_of(batch, rank):
    """Deal a batch: what one rank takes of it, in micro-batches."""
    return batch.split(STEPS * MICRO_BATCH)[rank].split(MICRO_BATCH)


def new_model(device):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    return layers.to(device, torch.float64)


def sharded(device):
    """Each layer by itself, so that no more than one is whole at a time."""
    model = new_model(device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*(layer for layer in model if isinstance(layer, nn.Linear)), model):
        fully_shard(part, mesh=mesh)
    return model


def weights(model):
    """All parameters as one vector, put together from the parts."""
    wholes = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
    return torch.cat([one.detach().flatten() for one in wholes])


def relative_error(found, right):
    return float((found - right).abs().max() / right.abs().max())


def whole_batch(x, y, batches):
    """The weights that one process gets, which takes each batch at once."""
    model = new_model(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return weights(model)


def plain_loop(x, y, batches):
    """The same over ranks as it is usually written, well: synchronised once, each loss divided by their number."""
    model = sharded(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for batch in batches:
        optimizer.zero_grad()
        mine = micro_batches_of(batch, dist.get_rank())
        for number, rows in enumerate(mine, start=1):
            model.set_requires_gradient_sync(number == len(mine))
            (F.cross_entropy(model(x[rows]), y[rows]) / len(mine)).backward()
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
    """What each rank runs; returns the figures of rank 0."""
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
        "held": (sum(one.to_local().numel() for one in model.parameters()), len(before)),
        "sizes": [
            [[len(rows) for rows in micro_batches_of(one, rank)] for rank in range(ranks)] for one in batches
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
    """What torchrun --standalone says: so many processes on this machine, at a free port."""
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
    held, numbers = figures["held"]
    print(f"{ranks} ranks ({device}, {backend}); rank 0 holds {held} of {numbers} parameters")
    for update, shares in enumerate(figures["sizes"], start=1):
        print(f"update {update}, of {sum(map(sum, shares))} digits:")
        for rank, sizes in enumerate(shares):
            print(f"  rank {rank} takes {', '.join(map(str, sizes))}")
    print("How far the first update is from that of the whole batch:")
    print(f"  plain FSDP2 loop   {figures['plain']:.2f}")
    for sync, error in figures["gradgate"].items():
        print(f"  gradgate, sync={sync!r:9}{error:.0e}")
    print("and both updates together, where the last rank has a micro-batch less:")
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
