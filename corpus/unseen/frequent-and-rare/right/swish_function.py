"""Memory-saving swish as an autograd Function with a trainable slope. Only the input is saved, and
the sigmoid is computed again in backward."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class SwishFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad_output):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        grad_x = grad_output * (s + beta * x * s * (1 - s))
        grad_beta = (grad_output * x * x * s * (1 - s)).sum().reshape(beta.shape)
        return grad_x, grad_beta


class Swish(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return SwishFn.apply(x, self.beta)


def build_net(width=32):
    return nn.Sequential(
        nn.Linear(64, width), Swish(),
        nn.Linear(width, width), Swish(),
        nn.Linear(width, 10),
    )


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def run(epochs=2, size=120, lr=0.1):
    torch.manual_seed(191)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    net = build_net()
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for epoch in range(epochs):
        losses = []
        for xb, yb in batches(x[:1400], y[:1400], size):
            loss = F.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {losses[0]:.4f} -> {losses[-1]:.4f}")
    with torch.no_grad():
        acc = (net(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
    slopes = [round(m.beta.item(), 3) for m in net if isinstance(m, Swish)]
    print(f"held-out accuracy {acc:.3f}, slopes {slopes}")


run()
