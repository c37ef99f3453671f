"""Each shard divides by the size of the whole batch, and the shards' sum is divided by their number again: the
gradient is a quarter of that of the whole batch."""

import copy

import torch
from torch import nn


class Replicas:
    """Data parallel training in one process: a copy of the model for each shard of the batch."""

    def __init__(self, model, world_size):
        self.master = model
        self.copies = [copy.deepcopy(model) for _ in range(world_size)]

    def broadcast(self):
        for replica in self.copies:
            replica.load_state_dict(self.master.state_dict())
            replica.zero_grad()

    def all_reduce(self):
        for name, p in self.master.named_parameters():
            grads = [replica.get_parameter(name).grad for replica in self.copies]
            p.grad = torch.stack(grads).sum(0) / len(grads)  # expect: loss-reduction


def shard_loss(model, x, y, batch_size):
    per_item = nn.functional.mse_loss(model(x).squeeze(-1), y, reduction="none")
    return per_item.sum() / batch_size  # expect: loss-reduction


def main(world_size=4, batch_size=32, epochs=2):
    torch.manual_seed(48)
    x = torch.randn(128, 9)
    y = x[:, 0] * x[:, 1] + x[:, 2]
    replicas = Replicas(nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1)), world_size)
    optimizer = torch.optim.SGD(replicas.master.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        for index in torch.randperm(len(x)).split(batch_size):
            replicas.broadcast()
            total = 0.0
            for model, part in zip(replicas.copies, index.chunk(world_size)):
                loss = shard_loss(model, x[part], y[part], len(index))
                loss.backward()
                total += loss.item()
            replicas.all_reduce()
            optimizer.step()
        print(f"epoch {epoch} mse {total:.4f}")


if __name__ == "__main__":
    main()
