"""Each rank trains a member of an ensemble, on all data and from a seed of its own; predictions meet at the end."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    x, y = torch.tensor(digits.data[:320] / 16).float(), torch.tensor(digits.target[:320])
    torch.manual_seed(rank)
    member = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(member.parameters(), lr=3e-3)
    for _ in range(2):
        for rows in torch.randperm(256).split(32):
            loss = F.cross_entropy(member(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        votes = member(x[256:]).softmax(dim=1)
    everyones = [torch.empty_like(votes) for _ in range(world)]
    dist.all_gather(everyones, votes)
    if rank == 0:
        accuracy = (sum(everyones).argmax(dim=1) == y[256:]).float().mean()
        print(f"accuracy of {world} members: {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
