"""Looks like a loop without zero_grad, step and division: gradgate's accumulator does all three when the
block ends."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradgate as gg


def load():
    raw = load_breast_cancer()
    x = torch.tensor(raw.data[:300], dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(raw.target[:300])
    return TensorDataset(x, y)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 24), nn.GELU(), nn.Linear(24, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(load(), batch_size=32, shuffle=True)

    accumulator = gg.Accumulator(optimizer, clip_norm=1.0)
    for epoch in range(2):
        for window in gg.windows(loader, size=4):
            with accumulator.update() as update:
                for x, y in update.micro_batches(window):
                    update.backward(F.cross_entropy(model(x), y), count=y.numel())
        print(f"epoch {epoch}: loss {update.loss:.3f}, norm {update.grad_norm:.3f}")


if __name__ == "__main__":
    main()
