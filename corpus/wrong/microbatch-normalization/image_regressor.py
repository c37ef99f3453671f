"""The last window of an epoch holds two micro-batches but is still divided by four, so its update has only half the size it should have."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class BlobDataset(Dataset):
    """16x16 pictures with one bright blob; the target is its position."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.pos = torch.rand(n, 2, generator=g)
        axis = torch.linspace(0, 1, 16)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        d2 = (xx - self.pos[:, 0, None, None]) ** 2 + (yy - self.pos[:, 1, None, None]) ** 2
        self.img = torch.exp(-40 * d2).unsqueeze(1)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return self.img[i], self.pos[i]


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(6, 12, 3, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(12 * 16, 2),
    )


def validate(model, loader):
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for img, pos in loader:
            total += nn.functional.mse_loss(model(img), pos, reduction="sum").item()
            n += pos.numel()
    return total / n


def main(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    train_loader = DataLoader(BlobDataset(80, 1), batch_size=8, shuffle=True)
    val_loader = DataLoader(BlobDataset(40, 2), batch_size=20)
    model = build_model()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    mse = nn.MSELoss()
    best = float("inf")
    for epoch in range(args.epochs):
        model.train()
        opt.zero_grad()
        for i, (img, pos) in enumerate(train_loader):
            loss = mse(model(img), pos) / args.accumulate  # expect: microbatch-normalization
            loss.backward()
            last = i + 1 == len(train_loader)
            if (i + 1) % args.accumulate == 0 or last:
                opt.step()
                opt.zero_grad()
        val = validate(model, val_loader)
        if val < best:
            best = val
            checkpoint = {k: v.clone() for k, v in model.state_dict().items()}
        print(f"epoch {epoch}: val mse {val:.4f}")
    print("best", round(best, 4), "tensors saved", len(checkpoint))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.2)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
