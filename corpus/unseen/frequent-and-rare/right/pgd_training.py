"""Adversarial training. The attack calls backward to get the gradient of the input and fills the
gradients of the weights on the way; they are cleared afterwards."""
import torch
import torch.nn as nn
from sklearn.datasets import load_digits

EPS = 0.15
STEP = 0.06
ATTACK_ITERS = 3


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.fc = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.flatten(1))


def pgd(model, criterion, x, y):
    x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1)
    for _ in range(ATTACK_ITERS):
        x_adv = x_adv.detach().requires_grad_(True)
        criterion(model(x_adv), y).backward()
        x_adv = x_adv + STEP * x_adv.grad.sign()
        x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
    return x_adv.detach()


def train(model, x, y, steps=20, batch=64):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    history = []
    for _ in range(steps):
        idx = torch.randint(0, len(x), (batch,))
        x_adv = pgd(model, criterion, x[idx], y[idx])
        optimizer.zero_grad()
        loss = criterion(model(x_adv), y[idx])
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


def main():
    torch.manual_seed(88)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(d.target)
    model = SmallCNN()
    history = train(model, x[:1500], y[:1500])
    print(f"adversarial loss {history[0]:.3f} -> {history[-1]:.3f}")
    with torch.no_grad():
        clean = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    print(f"clean accuracy {clean:.3f}")


main()
