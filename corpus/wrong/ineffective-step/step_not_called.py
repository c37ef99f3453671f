"""`optimizer.step` is named but not called, so no update ever happens."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Trainer(object):
    def __init__(self, opts):
        self.opts = opts
        self.net = nn.Sequential(nn.Linear(6, opts["hidden"]), nn.ReLU(), nn.Linear(opts["hidden"], 1))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=opts["lr"])
        self.criterion = nn.L1Loss()
        self.iteration = 0

    def optimize(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = self.criterion(self.net(x), y)
        loss.backward()
        self.optimizer.step  # expect: ineffective-step
        self.iteration += 1
        return loss.item()

    def train(self, loader):
        for epoch in range(self.opts["epochs"]):
            epoch_loss = [self.optimize(batch) for batch in loader]
            print(
                "epoch {} iter {} l1 {:.4f}".format(epoch, self.iteration, sum(epoch_loss) / len(epoch_loss))
            )


torch.manual_seed(62)
xs = torch.rand(200, 6)
ys = (10 * torch.sin(xs[:, :1] * xs[:, 1:2] * 3) + 5 * xs[:, 2:3] + 2 * xs[:, 3:4]) / 10
trainer = Trainer({"hidden": 20, "lr": 0.005, "epochs": 3})
trainer.train(DataLoader(list(zip(xs, ys)), batch_size=20, shuffle=True))
