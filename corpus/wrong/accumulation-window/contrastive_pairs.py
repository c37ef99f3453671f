"""The counter has to exceed the number of micro-batches before the update is made: each update has five
micro-batches divided by four, and there are 8 updates in place of 10.
"""

import torch
import torch.nn.functional as F
from torch import nn, optim


def augment(x, gen):
    return x + 0.1 * torch.randn(x.shape, generator=gen)


def pair_loss(za, zb, strangers):
    same = F.cosine_embedding_loss(za, zb, torch.ones(len(za)))
    return same + F.cosine_embedding_loss(za, strangers, -torch.ones(len(za)), margin=0.2)


class Learner:
    def __init__(self, encoder, lr, accumulate):
        self.encoder = encoder
        self.optimizer = optim.SGD(encoder.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
        self.accumulate = accumulate
        self.pending = 0
        self.updates = 0

    def learn(self, view_a, view_b, strangers):
        loss = pair_loss(self.encoder(view_a), self.encoder(view_b), self.encoder(strangers))
        (loss / self.accumulate).backward()
        self.pending += 1
        if self.pending > self.accumulate:  # expect: accumulation-window
            self.apply()
        return loss.item()

    def apply(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.pending = 0
        self.updates += 1


def main():
    gen = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    samples = torch.randn(20 * 16, 24, generator=gen)
    encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16))
    learner = Learner(encoder, lr=0.1, accumulate=4)
    for epoch in range(2):
        losses = []
        for batch in samples[torch.randperm(len(samples), generator=gen)].split(16):
            losses.append(
                learner.learn(
                    augment(batch, gen), augment(batch, gen), torch.randn(batch.shape, generator=gen)
                )
            )
        print(f"[{epoch}] pairs={sum(losses) / len(losses):.4f} updates={learner.updates}")


if __name__ == "__main__":
    main()
