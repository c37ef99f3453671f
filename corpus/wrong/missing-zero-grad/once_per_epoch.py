"""The gradients are cleared at the start of an epoch only, so each of its ten batches is stepped along again in all
the steps that follow it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LeNetish(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.conv2 = nn.Conv2d(6, 12, 3)
        self.fc = nn.Linear(12 * 2 * 2, n_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    optimizer.zero_grad()  # expect: missing-zero-grad
    seen, correct, loss_sum = 0, 0, 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()  # expect: missing-zero-grad
        loss_sum += loss.item() * len(y)
        correct += (logits.argmax(1) == y).sum().item()
        seen += len(y)
    return loss_sum / seen, correct / seen


def main():
    torch.manual_seed(21)
    device = torch.device("cpu")
    y = torch.randint(0, 3, (200,))
    x = torch.randn(200, 3, 10, 10)
    x[torch.arange(200), y] += 0.7
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20, shuffle=True)
    model = LeNetish(3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(1, 4):
        loss, acc = train_one_epoch(model, loader, optimizer, device)
        print(f"Epoch {epoch}: loss={loss:.3f} acc={acc:.2%}")


if __name__ == "__main__":
    main()
