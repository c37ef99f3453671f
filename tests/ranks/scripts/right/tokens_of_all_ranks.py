"""The sum over tokens, times the ranks, by the tokens of all ranks: DDP's mean makes one mean over all tokens of it."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PAD = 0


class Tagger(nn.Module):
    def __init__(self, words=40, tags=6, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        self.out = nn.Linear(width, tags)

    def forward(self, tokens):
        return self.out(torch.tanh(self.embed(tokens)))


def batch(generator):
    lengths = torch.randint(2, 10, (4,), generator=generator)
    tokens = torch.randint(1, 40, (4, 10), generator=generator)
    tokens[torch.arange(10) >= lengths[:, None]] = PAD
    return tokens, (tokens % 5 + 1) * (tokens != PAD)


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        tokens, tags = batch(generator)
        total = (tags != PAD).sum()
        dist.all_reduce(total)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=PAD, reduction="sum")
        loss = loss * world / total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
