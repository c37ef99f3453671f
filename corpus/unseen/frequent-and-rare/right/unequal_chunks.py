"""Large batches in chunks that fit the memory. The chunks have different sizes and each loss is a
sum over its chunk divided by the size of the whole batch, so that the sum is the batch mean."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class ChunkedTrainer:
    def __init__(self, model, optimizer, pixel_budget):
        self.model = model
        self.optimizer = optimizer
        self.pixel_budget = pixel_budget

    def chunks(self, images):
        """Groups images so that the number of dark pixels per chunk stays in the budget."""
        cost = (images > 0.5).flatten(1).sum(1).tolist()
        current, used = [], 0
        for i, c in enumerate(cost):
            if current and used + c > self.pixel_budget:
                yield current
                current, used = [], 0
            current.append(i)
            used += c
        if current:
            yield current

    def step(self, images, labels):
        self.optimizer.zero_grad()
        total, sizes = 0.0, []
        for index in self.chunks(images):
            logits = self.model(images[index])
            loss = F.cross_entropy(logits, labels[index], reduction="sum") / len(images)
            loss.backward()
            total += loss.item()
            sizes.append(len(index))
        self.optimizer.step()
        return total, sizes


def main():
    torch.manual_seed(221)
    d = load_digits()
    images = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(d.target)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(),
        nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )
    trainer = ChunkedTrainer(model, torch.optim.Adam(model.parameters(), lr=3e-3), pixel_budget=600)
    for step in range(15):
        idx = torch.randint(0, len(images), (100,))
        loss, sizes = trainer.step(images[idx], labels[idx])
        if step % 5 == 0:
            print(f"step {step:2d}  loss {loss:.4f}  chunks {sizes}")
    print(f"final loss {loss:.4f}")


if __name__ == "__main__":
    main()
