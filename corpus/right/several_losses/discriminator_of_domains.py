"""Gradients are reversed between encoder and discriminator: both optimizers step on the loss of the domains."""

import torch
from torch import nn
from torch.nn import functional as F


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


torch.manual_seed(12)
encoder = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
classifier, domains = nn.Linear(16, 2), nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (encoder, classifier, domains)]
for step in range(20):
    source, target = torch.randn(32, 5), torch.randn(32, 5) + 0.7
    labels = (source.sum(1) > 0).long()
    for optimizer in optimizers:
        optimizer.zero_grad()
    near, far = encoder(source), encoder(target)
    loss = F.cross_entropy(classifier(near), labels)
    loss.backward(retain_graph=True)
    of_near, of_far = domains(Reverse.apply(near)), domains(Reverse.apply(far))
    F.binary_cross_entropy_with_logits(of_near, torch.zeros(32, 1)).backward(retain_graph=True)
    F.binary_cross_entropy_with_logits(of_far, torch.ones(32, 1)).backward()
    for optimizer in optimizers:
        optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.3f}")
