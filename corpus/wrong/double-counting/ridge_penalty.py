"""One ridge penalty is both a term of the loss and the optimizer's weight decay: the pull is twice the one that
is named, and the weights' norm ends at 2.985 instead of 3.032."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

L2 = 0.02  # of 0.5 * L2 * |w|^2
EPOCHS = 2
BATCH = 32


def load():
    X, y = load_diabetes(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    y = (y - y.mean()) / y.std()
    return torch.from_numpy(X.astype(np.float32))[:256], torch.from_numpy(y.astype(np.float32))[:256]


def penalty(model):
    return 0.5 * L2 * sum(p.square().sum() for p in model.parameters())


def fit(model, X, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=L2)  # expect: double-counting
    mse = nn.MSELoss()
    history = []
    for epoch in range(EPOCHS):
        for idx in torch.randperm(len(X)).split(BATCH):
            optimizer.zero_grad()
            prediction = model(X[idx]).squeeze(1)
            loss = mse(prediction, y[idx]) + penalty(model)  # expect: double-counting
            loss.backward()
            optimizer.step()
            history.append(loss.item())
    return history


torch.manual_seed(13)
X, y = load()
net = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1))
history = fit(net, X, y)
print("first %.3f last %.3f" % (history[0], history[-1]))
print("norm of the weights %.4f" % sum(p.detach().square().sum() for p in net.parameters()).sqrt())
