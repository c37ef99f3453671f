"""The optimizer steps whenever i % accum == 0, so the very first micro-batch steps alone and the last three of an epoch spill into the next one."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="small CNN on the 8x8 digits")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=7)
args = parser.parse_args()

torch.manual_seed(args.seed)
torch.set_num_threads(1)

# ---- data -------------------------------------------------------------
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
labels = torch.tensor(digits.target)
perm = torch.randperm(len(images))
images, labels = images[perm], labels[perm]
train_set = TensorDataset(images[:384], labels[:384])
test_set = TensorDataset(images[384:640], labels[384:640])
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(test_set, batch_size=128)


# ---- model ------------------------------------------------------------
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
optimizer.zero_grad()

# ---- loop -------------------------------------------------------------
for epoch in range(1, args.epochs + 1):
    model.train()
    running = 0.0
    for i, (x, y) in enumerate(train_loader):
        loss = F.cross_entropy(model(x), y)
        running += loss.item()
        loss = loss / args.accum
        loss.backward()
        if i % args.accum == 0:  # expect: accumulation-window
            optimizer.step()
            optimizer.zero_grad()

    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            correct += (model(x).argmax(1) == y).sum().item()
    print(f"epoch {epoch}  loss {running / len(train_loader):.4f}  acc {correct / len(test_set):.3f}")
