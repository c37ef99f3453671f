# After each round of pruning, fit() trains the weights that are left, with an optimizer of its own. The masks are
# buffers or plain tensors: nothing writes the parameters between two rounds.
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, :4].sum(1) > 0).long()


def fit(network, parameters, steps):
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(steps):
        rows = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        F.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()


def fit_epochs(network, epochs):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()


hidden, head = nn.Linear(8, 16), nn.Linear(16, 2)
mask = torch.ones(16, 8)


def masked(inputs):
    return head(F.relu(F.linear(inputs, hidden.weight * mask, hidden.bias)))


for number in range(3):
    fit(masked, [*hidden.parameters(), *head.parameters()], steps=8)
    size = (hidden.weight.detach() * mask).abs()
    mask = (size > size.quantile(0.2 * (number + 1))).float()

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
for number in range(3):
    fit_epochs(net, epochs=2)
    prune.l1_unstructured(net[0], "weight", 0.2)
