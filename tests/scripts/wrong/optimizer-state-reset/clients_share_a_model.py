"""Federated averaging in which all clients train the global model itself, one after the other: the states
that they return are the same tensors, and their average is the last client's model."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


class Client:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def train(self, model, lr):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
        for batch in torch.randperm(len(self.x)).split(16):
            optimizer.zero_grad()
            loss = F.mse_loss(model(self.x[batch]), self.y[batch])
            loss.backward()
            optimizer.step()
        return model.state_dict(), loss.item()


def average(states):
    return {key: sum(state[key] for state in states) / len(states) for key in states[0]}


def main():
    server = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    weight = torch.randn(3, 1)
    clients = []
    for _ in range(3):
        x = torch.randn(48, 3)
        clients.append(Client(x, x @ weight))
    for rnd in range(3):
        states, losses = [], []
        for client in clients:
            state, loss = client.train(model=server, lr=0.05)  # expect: optimizer-state-reset
            states.append(state)
            losses.append(loss)
        server.load_state_dict(average(states))
        print(f"round {rnd} loss {sum(losses) / len(losses):.4f}")


main()
