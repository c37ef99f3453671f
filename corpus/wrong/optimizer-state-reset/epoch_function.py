"""Adam is created inside the function that trains one epoch, so its moment estimates and step count start from zero every epoch."""

import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes

BATCH = 34


class Regressor(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.inp = nn.Linear(n_in, 20)
        self.hid = nn.Linear(20, 20)
        self.out = nn.Linear(20, 1)
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        h = torch.nn.functional.mish(self.inp(x))
        h = self.drop(torch.nn.functional.mish(self.hid(h)))
        return self.out(h).squeeze(1)


def prepare():
    x, y = load_diabetes(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    y = torch.tensor(y, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = (y - y.mean()) / y.std()
    idx = torch.randperm(len(x))
    return (x[idx[:340]], y[idx[:340]]), (x[idx[340:]], y[idx[340:]])


def train_for_one_epoch(model, data, lr):
    x, y = data
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)  # expect: optimizer-state-reset
    model.train()
    running = 0.0
    for idx in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        loss = criterion(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
        running += loss.item() * len(idx)
    return running / len(x)


@torch.no_grad()
def validate(model, data):
    model.eval()
    x, y = data
    return nn.functional.mse_loss(model(x), y).item()


def main():
    torch.manual_seed(26)
    torch.set_num_threads(1)
    train_data, val_data = prepare()
    model = Regressor(train_data[0].shape[1])
    log = []
    for epoch in range(3):
        train_loss = train_for_one_epoch(model, train_data, lr=5e-3)
        val_loss = validate(model, val_data)
        log.append((train_loss, val_loss))
    for epoch, (a, b) in enumerate(log):
        print(f"{epoch}: train {a:.4f} val {b:.4f}")


if __name__ == "__main__":
    main()
