"""Each rank takes the mean over its own tokens; rank 1 has the long texts, whose tokens then weigh far less."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self, vocabulary=32, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(6):
        tokens = torch.randint(32, (4, 17), generator=generator)
        labels = tokens[:, 1:].clone()
        longest = 3 if rank == 0 else 16
        lengths = torch.randint(longest // 2 + 1, longest + 1, (4,), generator=generator)
        labels[torch.arange(16) >= lengths[:, None]] = -100
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100
        )  # expect: microbatch-normalization
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
