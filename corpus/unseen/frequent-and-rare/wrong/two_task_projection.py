"""Two tasks with gradient surgery. The first task's gradients are kept by reference, and the second
backward writes into the same tensors, so both lists hold the gradients of the second task."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh())
        self.reg = nn.Linear(16, 1)
        self.cls = nn.Linear(16, 2)

    def forward(self, x):
        h = self.shared(x)
        return self.reg(h).squeeze(-1), self.cls(h)


def make_batch(n):
    x = torch.randn(n, 5)
    y_reg = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2]
    y_cls = (x[:, 0] - x[:, 3] > 0).long()
    return x, y_reg, y_cls


def project(a, b):
    """Remove from a the part that points against b."""
    dot = sum((u * v).sum() for u, v in zip(a, b))
    if dot >= 0:
        return a
    norm = sum((v * v).sum() for v in b) + 1e-12
    return [u - dot / norm * v for u, v in zip(a, b)]


def clear(params):
    for p in params:
        if p.grad is not None:
            p.grad.zero_()


def surgery_step(net, optimizer, x, y_reg, y_cls):
    shared = list(net.shared.parameters())
    pred, logits = net(x)
    loss_reg = F.mse_loss(pred, y_reg)
    loss_cls = F.cross_entropy(logits, y_cls)

    clear(net.parameters())
    loss_reg.backward(retain_graph=True)
    g_reg = [p.grad for p in shared]  # expect: gradients kept by reference
    clear(shared)
    loss_cls.backward()
    g_cls = [p.grad.clone() for p in shared]

    new_reg = project(g_reg, g_cls)
    new_cls = project(g_cls, g_reg)
    for p, a, b in zip(shared, new_reg, new_cls):
        p.grad = a + b
    optimizer.step()
    return loss_reg.item(), loss_cls.item()


def main():
    torch.manual_seed(40)
    net = SharedNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(30):
        lr_, lc_ = surgery_step(net, optimizer, *make_batch(64))
        if step % 10 == 0:
            print(f"step {step:2d}  reg {lr_:.4f}  cls {lc_:.4f}")
    print(f"final    reg {lr_:.4f}  cls {lc_:.4f}")


main()
