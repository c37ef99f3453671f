"""Only the regressor is trained, but the feature extractor is run with its graph and not frozen, so each backward also
computes gradients for it that pile up unused."""

import argparse

import torch
import torch.nn as nn


class Extractor(nn.Module):
    def __init__(self, n_tokens=40, dim=16):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, ids):
        return self.layer(self.embed(ids)).mean(1)


def build(args):
    torch.manual_seed(args.pretrain_seed)
    extractor = Extractor()
    extractor.eval()  # expect: wasted-gradient
    regressor = nn.Sequential(nn.Linear(16, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 1))
    return extractor, regressor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pretrain-seed", type=int, default=7)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    extractor, regressor = build(args)
    optimizer = torch.optim.Adam(regressor.parameters(), lr=args.lr)
    ids = torch.randint(0, 40, (200, 6))
    target = (ids < 10).float().mean(1, keepdim=True)

    for epoch in range(args.epochs):
        losses = []
        for idx in torch.randperm(len(ids)).split(20):
            features = extractor(ids[idx])  # expect: wasted-gradient
            loss = nn.functional.mse_loss(regressor(features), target[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} mse {sum(losses) / len(losses):.5f}")


if __name__ == "__main__":
    main()
