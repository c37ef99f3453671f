"""The classification loss is back-propagated on its own with retain_graph and then once more inside the total, so it counts twice against the center loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class CenterLoss(nn.Module):
    """Pulls every feature towards the learnable centre of its class."""

    def __init__(self, n_classes, dim):
        super().__init__()
        self.centers = nn.Parameter(0.1 * torch.randn(n_classes, dim))

    def forward(self, feats, labels):
        return 0.5 * (feats - self.centers[labels]).pow(2).sum(1).mean()


class FeatureNet(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 40), nn.PReLU(), nn.Linear(40, dim))
        self.act = nn.PReLU()
        self.classifier = nn.Linear(dim, 10)

    def forward(self, x):
        feats = self.body(x)
        return feats, self.classifier(self.act(feats))


class Solver:
    def __init__(self, alpha=0.1):
        self.net = FeatureNet()
        self.center_loss = CenterLoss(10, 8)
        self.alpha = alpha
        self.opt_net = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.opt_centers = torch.optim.SGD(self.center_loss.parameters(), lr=0.5)
        self.grad_log = []

    def train_step(self, x, labels):
        self.opt_net.zero_grad()
        self.opt_centers.zero_grad()
        feats, logits = self.net(x)
        cls_loss = F.cross_entropy(logits, labels)
        ctr_loss = self.center_loss(feats, labels)

        cls_loss.backward(retain_graph=True)  # expect: double-counting
        self.grad_log.append(self.net.classifier.weight.grad.norm().item())
        total = cls_loss + self.alpha * ctr_loss
        total.backward()  # expect: double-counting

        self.opt_net.step()
        self.opt_centers.step()
        return total.item()

    @torch.no_grad()
    def accuracy(self, x, labels):
        self.net.eval()
        _, logits = self.net(x)
        self.net.train()
        return (logits.argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(47)
    torch.set_num_threads(1)
    data, target = load_digits(return_X_y=True)
    x = torch.tensor(data, dtype=torch.float32) / 16
    y = torch.tensor(target)
    x_train, y_train, x_test, y_test = x[:640], y[:640], x[640:900], y[640:900]
    solver = Solver()
    for epoch in range(2):
        for idx in torch.randperm(len(x_train)).split(64):
            loss = solver.train_step(x_train[idx], y_train[idx])
        print(f"epoch {epoch} loss {loss:.4f} acc {solver.accuracy(x_test, y_test):.3f}")
    print(f"mean classifier grad norm {sum(solver.grad_log) / len(solver.grad_log):.4f}")


if __name__ == "__main__":
    main()
