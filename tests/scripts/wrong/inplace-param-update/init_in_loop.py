"""The initialisation is applied at the start of each epoch, so what the epochs before have learned is overwritten."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def init_weights(m):
    if isinstance(m, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
        nn.init.zeros_(m.bias)


def run_epoch(model, opt, x, y, batch_size):
    model.apply(init_weights)  # expect: inplace-param-update
    model.train()
    total = 0.0
    for idx in torch.randperm(len(x)).split(batch_size):
        logits = model(x[idx])
        loss = F.cross_entropy(logits, y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(idx)
    return total / len(x)


def main():
    torch.manual_seed(38)
    y = torch.randint(0, 2, (200,))
    x = torch.randn(200, 1, 6, 6)
    x[y == 1, :, :3] += x[y == 1, :, 3:]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(4):
        print(f"epoch {epoch}: {run_epoch(model, opt, x, y, 20):.4f}")


if __name__ == "__main__":
    main()
