"""find_unused_parameters hides that the auxiliary head has no part in the loss: it is never trained."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.label = nn.Linear(16, 3)
        self.angle = nn.Linear(16, 1)

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.label(h), self.angle(h)  # expect: unreached-parameter


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # expect: unreached-parameter
    shard = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        x, y = torch.randn(16, 8, generator=shard), torch.randint(3, (16,), generator=shard)
        angles = x.mean(dim=1, keepdim=True)
        logits, angle = model(x)  # expect: unreached-parameter
        loss = F.cross_entropy(logits, y)  # expect: unreached-parameter
        error = F.mse_loss(angle.detach(), angles)
        optimizer.zero_grad()
        loss.backward()  # expect: unreached-parameter
        optimizer.step()
    if dist.get_rank() == 0:
        print(loss.item(), error.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
