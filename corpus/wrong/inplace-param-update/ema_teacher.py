"""The moving average is written into the live model instead of the averaged copy, so every optimizer step is mostly undone."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from sklearn.datasets import make_moons


class EMA:
    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.shadow = copy.deepcopy(model)
        self.shadow.requires_grad_(False)
        self.shadow.eval()

    @torch.no_grad()
    def update(self, model):
        for p, s in zip(model.parameters(), self.shadow.parameters()):
            p.mul_(1 - self.decay).add_(s, alpha=self.decay)  # expect: inplace-param-update


def make_net():
    return nn.Sequential(
        nn.Linear(2, 24),
        nn.SiLU(),
        nn.Linear(24, 24),
        nn.SiLU(),
        nn.Linear(24, 2),
    )


def noisy(x, scale=0.1):
    return x + scale * torch.randn_like(x)


class MeanTeacher:
    """Supervised loss on a few labels plus consistency with the averaged model."""

    def __init__(self, lr=0.02, consistency=0.5):
        self.student = make_net()
        self.ema = EMA(self.student)
        self.consistency = consistency
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=lr)

    def step(self, x_lab, y_lab, x_unl):
        with torch.no_grad():
            target = self.ema.shadow(noisy(x_unl)).softmax(-1)
        supervised = F.cross_entropy(self.student(noisy(x_lab)), y_lab)
        unsupervised = F.mse_loss(self.student(noisy(x_unl)).softmax(-1), target)
        loss = supervised + self.consistency * unsupervised
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.ema.update(self.student)
        return loss.item()

    @torch.no_grad()
    def accuracy(self, net, x, y):
        return (net(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(88)
    torch.set_num_threads(1)
    x, y = make_moons(400, noise=0.1, random_state=0)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    x_lab, y_lab, x_unl, x_test, y_test = x[:40], y[:40], x[40:280], x[280:], y[280:]
    algo = MeanTeacher()
    for epoch in range(3):
        for idx in torch.randperm(len(x_unl)).split(30):
            pick = torch.randint(0, len(x_lab), (20,))
            loss = algo.step(x_lab[pick], y_lab[pick], x_unl[idx])
        student, teacher = (algo.accuracy(n, x_test, y_test) for n in (algo.student, algo.ema.shadow))
        print(f"epoch {epoch} loss {loss:.4f} student {student:.3f} teacher {teacher:.3f}")


if __name__ == "__main__":
    main()
