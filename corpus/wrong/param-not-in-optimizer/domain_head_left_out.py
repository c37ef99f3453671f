"""Domain-adversarial training whose optimizer leaves out the domain classifier: the features are made to
confuse a head with random weights."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.alpha * grad, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.label_head = nn.Sequential()
        self.label_head.add_module("l_fc1", nn.Linear(16, 16))
        self.label_head.add_module("l_relu", nn.ReLU())
        self.label_head.add_module("l_fc2", nn.Linear(16, 4))
        self.domain_head = nn.Sequential()
        self.domain_head.add_module("d_fc1", nn.Linear(16, 16))
        self.domain_head.add_module("d_relu", nn.ReLU())
        self.domain_head.add_module("d_fc2", nn.Linear(16, 2))

    def forward(self, x, alpha):
        feature = self.feature(x)
        return self.label_head(feature), self.domain_head(Reverse.apply(feature, alpha))


net = Net()
parameters = [*net.feature.parameters(), *net.label_head.parameters()]  # expect: param-not-in-optimizer
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for step in range(16):
    source, target = torch.randn(32, 6), torch.randn(32, 6) + 0.5
    labels, domain = net(source, 0.1)
    loss = F.cross_entropy(labels, source[:, :4].argmax(1))
    loss = loss + F.cross_entropy(domain, torch.zeros(32, dtype=torch.long))
    _, domain = net(target, 0.1)
    loss = loss + F.cross_entropy(domain, torch.ones(32, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        print(f"step {step} loss {loss.item():.4f}")
