"""Rounding in place before each forward throws the small updates of the optimizer away: the loss rises to 1.48,
while full-precision weights beside the rounded ones bring it to 1.13."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--bits", type=int, default=4)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-3)


def quantize(w, bits):
    scale = w.abs().max() / (2 ** (bits - 1) - 1)
    return (w / scale).round() * scale


def quantize_model(model, bits):
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Linear)):
            module.weight.data.copy_(quantize(module.weight.data, bits))  # expect: inplace-param-update


class KeywordNet(nn.Sequential):
    def __init__(self, n_words):
        super().__init__(
            nn.Conv1d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(16 * 10, n_words),
        )


def main():
    args = parser.parse_args()
    torch.manual_seed(3)
    words = torch.arange(120) % 4
    spectra = torch.randn(4, 8, 20)[words] + 0.7 * torch.randn(120, 8, 20)
    model = KeywordNet(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for index in torch.randperm(len(words)).split(24):
            quantize_model(model, args.bits)
            loss = F.cross_entropy(model(spectra[index]), words[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} | {args.bits} bits | loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
