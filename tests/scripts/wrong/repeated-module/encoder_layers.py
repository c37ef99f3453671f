"""Three encoder layers were meant, and one is applied three times: a third of the parameters."""

import argparse

import torch
from torch import nn


def build(args):
    layers = nn.Sequential(
        *[
            nn.TransformerEncoderLayer(
                args.dim, 2, 2 * args.dim, dropout=0.0, batch_first=True
            )  # expect: repeated-module
        ]
        * args.layers
    )
    return nn.ModuleDict(
        {
            "embed": nn.Embedding(args.vocab, args.dim),
            "layers": layers,
            "head": nn.Linear(args.dim, args.vocab),
        }
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(1)
    model = build(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        tokens = torch.randint(args.vocab, (16, 10))
        logits = model["head"](model["layers"](model["embed"](tokens)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
