"""Federated averaging in a state_dict, a new dict each time: it is loaded back into the global model."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


def average(states):
    mean = copy.deepcopy(states[0])
    for key in mean:
        for state in states[1:]:
            mean[key] = mean[key] + state[key]
        mean[key] = mean[key] / len(states)
    return mean


def mix(model, state, rate):
    current = model.state_dict()
    for key in current:
        current[key] = (1 - rate) * current[key] + rate * state[key]
    model.load_state_dict(current)


server = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
clients = [(torch.randn(40, 6), torch.randint(2, (40,))) for _ in range(3)]
for turn in range(3):
    states = []
    for x, y in clients:
        local = copy.deepcopy(server)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(local(x), y)
            loss.backward()
            optimizer.step()
        states.append(local.state_dict())
    mix(server, average(states), 0.5)
    print(f"round {turn}: {loss.item():.4f}")
