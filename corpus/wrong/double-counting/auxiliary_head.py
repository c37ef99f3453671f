"""The auxiliary loss is back-propagated alone and then again as part of the total: its head has twice its
gradient, and all gradients together are off by 16 to 49%."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class DeeplySupervised(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.aux = nn.Linear(12, n_classes)
        self.fc = nn.Linear(24, n_classes)

    def forward(self, x):
        a = self.block1(x)
        b = self.block2(a)
        return self.fc(b.mean((2, 3))), self.aux(a.mean((2, 3)))


def training_step(model, optimizer, x, y, aux_weight=0.3):
    logits, aux_logits = model(x)
    aux_loss = aux_weight * F.cross_entropy(aux_logits, y)
    loss = F.cross_entropy(logits, y) + aux_loss
    optimizer.zero_grad()
    aux_loss.backward(retain_graph=True)  # expect: double-counting
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(71)
    y = torch.randint(4, (128,))
    x = torch.randn(4, 3, 1, 1)[y] + torch.randn(128, 3, 12, 12)
    model = DeeplySupervised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for epoch in range(2):
        losses = [training_step(model, optimizer, x[i : i + 32], y[i : i + 32]) for i in range(0, 128, 32)]
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
