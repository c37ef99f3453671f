"""A second step stands after the branch: 48 updates with a sixth of one batch's gradient instead of 8 with six batches'."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)


class Args:
    accum_iter = 6
    batch_size = 8
    epochs = 2
    lr = 0.05


args = Args()
data = torch.randn(192, 10)
loader = DataLoader(TensorDataset(data, (data[:, :3].sum(1) > 0).long()), args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)


def train_one_epoch(epoch):
    optimizer.zero_grad()
    correct = 0
    for data_iter_step, (samples, targets) in enumerate(loader):
        outputs = model(samples)
        loss = nn.functional.cross_entropy(outputs, targets)
        correct += (outputs.argmax(1) == targets).sum().item()
        loss = loss / args.accum_iter
        loss.backward()
        if (data_iter_step + 1) % args.accum_iter == 0:
            optimizer.step()
            optimizer.zero_grad()
        optimizer.step()  # expect: accumulation-window
    print(f"epoch {epoch} accuracy {correct / 192:.3f}")


for epoch in range(args.epochs):
    train_one_epoch(epoch)
