"""The classifier head is replaced after the optimizer was built, so the optimizer holds the old head and the new one never changes."""

import torch
from sklearn.datasets import load_iris
from torch import nn


class Backbone(nn.Module):
    """Small network 'pretrained' on a 10-class problem."""

    def __init__(self, n_classes=10):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.fc = nn.Linear(16, n_classes)

    def forward(self, x):
        return self.fc(self.features(x))


def create_model(seed=0):
    torch.manual_seed(seed)
    return Backbone()


def param_groups(model, backbone_lr, head_lr):
    return [
        {"params": model.features.parameters(), "lr": backbone_lr},
        {"params": model.fc.parameters(), "lr": head_lr},
    ]


def load_flowers():
    x, y = load_iris(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(y)
    order = torch.randperm(len(x))
    return x[order[:110]], y[order[:110]], x[order[110:]], y[order[110:]]


def train_loop(model, optimizer, x, y, batch_size=22):
    model.train()
    criterion = nn.CrossEntropyLoss()
    loss_value = 0.0
    for idx in torch.randperm(len(x)).split(batch_size):
        model.zero_grad()
        loss = criterion(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
        loss_value += loss.item() * len(idx)
    return loss_value / len(x)


def test_loop(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.set_num_threads(1)
    model = create_model()
    optimizer = torch.optim.SGD(
        param_groups(model, 0.01, 0.1), momentum=0.9
    )  # expect: stale-optimizer-params
    x_train, y_train, x_test, y_test = load_flowers()

    n_classes = int(y_train.max()) + 1
    model.fc = nn.Linear(model.fc.in_features, n_classes)  # expect: stale-optimizer-params

    print(f"before: acc {test_loop(model, x_test, y_test):.3f}")
    for epoch in range(3):
        loss = train_loop(model, optimizer, x_train, y_train)
        print(f"epoch {epoch}: loss {loss:.4f} acc {test_loop(model, x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
