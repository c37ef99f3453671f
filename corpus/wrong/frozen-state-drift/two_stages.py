"""Zeroed gradients still feed momentum and weight decay, so the body moves on after its freeze: by 0.24, as far
as in the first stage."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
        self.head = nn.Linear(40, 5)

    def forward(self, x):
        return self.head(self.body(x))


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad = flag  # expect: frozen-state-drift


def train(model, optimizer, x, y, epochs, tag):
    for epoch in range(epochs):
        for i in torch.randperm(len(x)).split(30):
            loss = F.cross_entropy(model(x[i]), y[i])
            optimizer.zero_grad(set_to_none=False)  # expect: frozen-state-drift
            loss.backward()
            optimizer.step()
        print(f"{tag} epoch {epoch}: {loss.item():.4f}")


def main():
    torch.manual_seed(26)
    x = torch.randn(120, 20)
    coarse = torch.randn(20, 5)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)

    # stage 1: everything
    train(model, optimizer, x, (x @ coarse).argmax(1), 2, "pretrain")

    # stage 2: new labels, the representation stays
    set_trainable(model.body, False)
    fine = (x @ (coarse + 0.5 * torch.randn(20, 5))).argmax(1)
    train(model, optimizer, x, fine, 2, "finetune")


if __name__ == "__main__":
    main()
