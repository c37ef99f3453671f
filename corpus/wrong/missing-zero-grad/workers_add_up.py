"""A server sums the gradients of its clients and steps, but never clears the sum before the next round."""

import copy

import torch
from torch import nn


class Server:
    def __init__(self, net, lr):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)

    def receive(self, gradients, share):
        for p, g in zip(self.net.parameters(), gradients):
            p.grad.add_(g, alpha=share)

    def apply(self):
        self.optimizer.step()  # expect: missing-zero-grad


class Client:
    def __init__(self, net, seed):
        self.net = copy.deepcopy(net)
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(40, 4, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def gradients(self, weights):
        self.net.load_state_dict(weights)
        self.net.zero_grad()
        nn.functional.cross_entropy(self.net(self.x), self.y).backward()
        return [p.grad for p in self.net.parameters()]


torch.manual_seed(8)
server = Server(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), lr=0.02)
clients = [Client(server.net, seed) for seed in range(3)]
for round_ in range(12):
    for client in clients:
        server.receive(client.gradients(server.net.state_dict()), share=1 / len(clients))
    server.apply()
print(f"{server.net[0].weight.norm():.3f}")
