"""The step comes between zero_grad and backward, so it never finds a gradient and the weights stay at their start."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Siamese(nn.Module):
    def __init__(self, n_in=15, n_out=4):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(n_in, 24), nn.ReLU(), nn.Linear(24, n_out))

    def forward(self, a, b):
        return F.pairwise_distance(self.embed(a), self.embed(b))


def contrastive(dist, same, margin=1.0):
    return (same * dist.pow(2) + (1 - same) * F.relu(margin - dist).pow(2)).mean()


def pair_stream(n_steps, proto, g):
    for _ in range(n_steps):
        ka, kb = torch.randint(0, len(proto), (2, 32), generator=g)
        noise = torch.randn(2, 32, 15, generator=g) * 0.3
        yield proto[ka] + noise[0], proto[kb] + noise[1], (ka == kb).float()


def main():
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(4)
    proto = torch.randn(3, 15, generator=g)
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(2):
        for a, b, same in pair_stream(10, proto, g):
            loss = contrastive(model(a, b), same)
            optimizer.zero_grad()
            optimizer.step()  # expect: ineffective-step
            loss.backward()
        print(f"epoch {epoch}: contrastive loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
