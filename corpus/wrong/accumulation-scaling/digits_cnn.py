"""Means of four micro-batches are added up and never divided by four: the first gradient is 4.0 times too
large, and the weights move 4.3 times as far in four updates.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images[:256], dtype=torch.float32).unsqueeze(1) / 16.0
targets = torch.tensor(digits.target[:256])
train_set = TensorDataset(images, targets)

# we want batches of 128 but only 32 fit into memory
micro_batch_size = 32
accumulation_steps = 4
train_loader = DataLoader(train_set, batch_size=micro_batch_size, shuffle=True)

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 10),
)
optimizer = optim.SGD(net.parameters(), lr=0.3, momentum=0.9, nesterov=True)

for epoch in range(2):
    running_loss, correct = 0.0, 0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(train_loader):
        out = net(x)
        loss = F.cross_entropy(out, y)  # expect: accumulation-scaling
        loss.backward()  # expect: accumulation-scaling

        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()

        running_loss += loss.item()
        correct += (out.argmax(1) == y).sum().item()
    print(f"Epoch {epoch}: loss={running_loss / len(train_loader):.3f} acc={correct / len(train_set):.3f}")
