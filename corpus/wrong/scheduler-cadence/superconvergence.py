"""OneCycleLR is told that an epoch has as many steps as the dataset has samples instead of batches, so the rate never leaves the start of its climb."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.SiLU(),
        nn.MaxPool2d(2),
    )


def build_net():
    return nn.Sequential(
        conv_block(1, 8),
        conv_block(8, 16),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def get_data():
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(bunch.target)
    x_tr, x_te, y_tr, y_te = train_test_split(x[:700], y[:700], test_size=200, random_state=0)
    return TensorDataset(x_tr, y_tr), TensorDataset(x_te, y_te)


def accuracy(net, loader):
    net.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (net(x).argmax(1) == y).sum().item()
    return hits / len(loader.dataset)


def fit_one_cycle(net, train_set, valid_set, epochs, max_lr, batch_size=50):
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=100)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=max_lr / 25, momentum=0.9, weight_decay=1e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=max_lr,
        epochs=epochs,
        steps_per_epoch=len(train_set),  # expect: scheduler-cadence
        pct_start=0.3,
    )
    lrs = []
    for epoch in range(epochs):
        net.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            lrs.append(cycle.get_last_lr()[0])
            cycle.step()
        print(f"epoch {epoch} loss {loss.item():.4f} acc {accuracy(net, valid_loader):.3f}")
    return lrs


if __name__ == "__main__":
    torch.manual_seed(64)
    torch.set_num_threads(1)
    lrs = fit_one_cycle(build_net(), *get_data(), epochs=2, max_lr=0.2)
    print(f"{len(lrs)} updates, first lr {lrs[0]:.4f}, last lr {lrs[-1]:.4f}")
