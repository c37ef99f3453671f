"""The class centres are parameters of the loss, and the optimizer was given only those of the model: the centres stay
at their random start."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class CenterLoss(nn.Module):
    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim))

    def forward(self, feats, labels):
        return (feats - self.centers[labels]).pow(2).sum(1).mean() / 2


class FeatureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 8)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x):
        feats = self.fc2(F.leaky_relu(self.fc1(x), 0.1))
        return feats, self.classifier(F.leaky_relu(feats, 0.1))


def main(alpha=0.05, epochs=3, bs=64):
    torch.manual_seed(1)
    d = load_digits()
    x = torch.tensor(d.data[:640] / 16, dtype=torch.float32)
    y = torch.tensor(d.target[:640])
    net = FeatureNet()
    center_loss = CenterLoss(10, 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)  # expect: param-not-in-optimizer
    for epoch in range(epochs):
        for i in torch.randperm(640).split(bs):
            feats, logits = net(x[i])
            c = center_loss(feats, y[i])
            loss = F.cross_entropy(logits, y[i]) + alpha * c
            optimizer.zero_grad()
            center_loss.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} center {c.item():.4f}")


main()
