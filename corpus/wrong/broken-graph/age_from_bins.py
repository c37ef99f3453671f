"""The predicted age is read off with argmax, so the L1 term of the loss reaches no weight: the gradients lack
86 to 100% of their size, and the error ends at 8.4 years instead of 3.9."""

import numpy as np
import torch
import torch.nn as nn
from torch.optim import SGD

np.random.seed(0)
torch.manual_seed(0)

N_BINS = 20
bin_centers = torch.linspace(2.5, 97.5, N_BINS)

# synthetic "faces"
ages = np.random.uniform(0, 100, size=256).astype("float32")
directions = np.random.randn(2, 40).astype("float32")
faces = np.outer(np.sin(ages / 30), directions[0]) + np.outer(ages / 50, directions[1])
faces = (faces + 0.1 * np.random.randn(256, 40)).astype("float32")


class AgeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(40, 64)
        self.bn1 = nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, N_BINS)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn1(self.fc1(x))))


def age_loss(logits, age, l1_weight=0.2):
    target_bin = (age / 5).long().clamp(max=N_BINS - 1)
    ce = nn.functional.cross_entropy(logits, target_bin)
    predicted = bin_centers[logits.argmax(dim=1)]  # expect: broken-graph
    l1 = nn.functional.l1_loss(predicted, age)
    return ce + l1_weight * l1, ce, l1


net = AgeNet()
opt = SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)

for epoch in range(2):
    order = np.random.permutation(len(faces))
    for start in range(0, len(order), 64):
        idx = order[start : start + 64]
        inputs = torch.from_numpy(faces[idx])
        target = torch.from_numpy(ages[idx])
        opt.zero_grad()
        loss, ce, l1 = age_loss(net(inputs), target)
        loss.backward()
        opt.step()
    print("epoch", epoch, "ce", round(float(ce), 3), "mae", round(float(l1), 2))
