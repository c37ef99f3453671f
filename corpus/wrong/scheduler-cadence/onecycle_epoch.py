"""The one-cycle schedule is laid out over all 40 batches but advances once an epoch: the rate never gets beyond the
first 4 of its 40 points."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


class Learner:
    def __init__(self, dls, model, loss_func, opt_func, lr):
        self.dls, self.model, self.loss_func = dls, model, loss_func
        self.opt_func, self.lr = opt_func, lr

    def fit_one_cycle(self, n_epoch):
        opt = self.opt_func(self.model.parameters(), lr=self.lr)
        sched = OneCycleLR(
            opt, max_lr=self.lr, total_steps=n_epoch * len(self.dls)
        )  # expect: scheduler-cadence
        for epoch in range(n_epoch):
            tot = 0.0
            for xb, yb in self.dls:
                loss = self.loss_func(self.model(xb).squeeze(1), yb)
                loss.backward()
                opt.step()
                opt.zero_grad()
                tot += loss.item()
            sched.step()  # expect: scheduler-cadence
            print(f"{epoch:>3} {tot / len(self.dls):.5f}")


torch.manual_seed(99)
X, y = load_breast_cancer(return_X_y=True)
ds = TensorDataset(
    torch.tensor(scale(X), dtype=torch.float32)[:500], torch.tensor(y, dtype=torch.float32)[:500]
)
dl = DataLoader(ds, batch_size=50, shuffle=True)
learn = Learner(
    dl,
    nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1)),
    nn.BCEWithLogitsLoss(),
    torch.optim.SGD,
    0.5,
)
learn.fit_one_cycle(4)
