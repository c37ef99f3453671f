"""zero_grad stands in a different place in each epoch: before the forward, between forward and backward, after the
step. All are right."""

import torch
import torch.nn.functional as F

torch.manual_seed(3)
X = torch.randn(200, 6)
T = (X @ torch.randn(6, 3)).argmax(1)
net = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
opt = torch.optim.RMSprop(net.parameters(), lr=0.003)


def clear_first(x, t):
    opt.zero_grad()
    loss = F.cross_entropy(net(x), t)
    loss.backward()
    opt.step()
    return loss


def clear_before_backward(x, t):
    loss = F.cross_entropy(net(x), t)
    net.zero_grad()
    loss.backward()
    opt.step()
    return loss


def clear_after_step(x, t):
    loss = F.cross_entropy(net(x), t)
    loss.backward()
    opt.step()
    for p in net.parameters():
        p.grad = None
    return loss


for epoch, step in enumerate([clear_first, clear_before_backward, clear_after_step, clear_first]):
    opt.zero_grad(set_to_none=False)
    for idx in torch.randperm(200).split(25):
        loss = step(X[idx], T[idx])
    print(f"{step.__name__:>22}: {loss.item():.4f}")
