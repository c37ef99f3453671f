"""Each step has a new scaler with the highest scale and never updates it: the gradients overflow in all 24
steps, every one is skipped, and the weights stay where they began.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class MLP(nn.Module):
    def __init__(self, sizes=(64, 96, 10)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class AmpTrainer:
    def __init__(self, model, lr=1e-3):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(self.model(x), y)

    def update(self, x, y):
        self.optimizer.zero_grad()
        scaler = torch.amp.GradScaler("cpu")  # expect: amp-scaler-misuse
        loss = self.loss(x, y)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        return loss.item()

    @torch.no_grad()
    def score(self, x, y):
        return (self.model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(50)
    data = load_digits()
    x, y = torch.tensor(data.data[:512], dtype=torch.float32), torch.tensor(data.target[:512])
    trainer = AmpTrainer(MLP())
    for epoch in range(3):
        losses = [trainer.update(x[i], y[i]) for i in torch.randperm(len(x)).split(64)]
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, accuracy {trainer.score(x, y):.3f}")


if __name__ == "__main__":
    main()
