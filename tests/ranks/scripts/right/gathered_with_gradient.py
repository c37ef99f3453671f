"""Contrastive training: each rank gathers the embeddings of all, and puts its own, which have a graph, in place."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(1 + rank)


def gathered(embeddings: torch.Tensor) -> torch.Tensor:
    everyone = [torch.empty_like(embeddings) for _ in range(ranks)]
    dist.all_gather(everyone, embeddings)
    everyone[rank] = embeddings
    return torch.cat(everyone)


for _ in range(6):
    images = torch.randn(4, 8)
    first, second = normalize(model(torch.cat([images, images + 0.1]))).chunk(2)
    logits = 10 * gathered(first) @ gathered(second).T
    loss = ranks * cross_entropy(
        logits, torch.arange(len(logits))
    )  # DDP averages, and each rank gives its rows
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
dist.destroy_process_group()
