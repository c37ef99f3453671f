"""Looks like an odd scheduler call: ReduceLROnPlateau is given the validation loss, once an epoch, after an
evaluation that puts the model back into training mode."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn


def load():
    x, y = load_diabetes(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32) * 20
    y = torch.tensor(y, dtype=torch.float32)
    y = (y - y.mean()) / y.std()
    return (x[:360], y[:360]), (x[360:], y[360:])


class EarlyStopping:
    def __init__(self, patience=2):
        self.best, self.bad, self.patience, self.state = float("inf"), 0, patience, None

    def __call__(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.state = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


def evaluate(model, data):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        value = nn.functional.mse_loss(model(data[0]).squeeze(-1), data[1]).item()
    model.train(was_training)
    return value


def main():
    torch.manual_seed(0)
    train, val = load()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    stop = EarlyStopping()
    for epoch in range(6):
        for idx in torch.randperm(360).split(60):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(train[0][idx]).squeeze(-1), train[1][idx])
            loss.backward()
            optimizer.step()
        val_loss = evaluate(model, val)
        scheduler.step(val_loss)
        print(f"epoch {epoch}: val {val_loss:.4f} lr {optimizer.param_groups[0]['lr']:.4f}")
        if stop(val_loss, model):
            break
    model.load_state_dict(stop.state)


if __name__ == "__main__":
    main()
