"""Federated averaging: from the second round on, each client's copy is in evaluation mode, because the
global model was when it was copied. Dropout is off while the clients train."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


class Client:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def train(self, model, lr):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
        for batch in torch.randperm(len(self.x)).split(16):
            optimizer.zero_grad()
            loss = F.mse_loss(model(self.x[batch]), self.y[batch])
            loss.backward()
            optimizer.step()
        return model.state_dict(), loss.item()


def average(states):
    return {key: sum(state[key] for state in states) / len(states) for key in states[0]}


def evaluate(model, x, y):
    model.eval()  # expect: train-eval-mode
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


def main():
    server = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    weight, test = torch.randn(3, 1), torch.randn(40, 3)
    clients = []
    for _ in range(3):
        x = torch.randn(48, 3)
        clients.append(Client(x, x @ weight))
    for rnd in range(3):
        states, losses = [], []
        for client in clients:
            state, loss = client.train(model=copy.deepcopy(server), lr=0.05)
            states.append(state)
            losses.append(loss)
        server.load_state_dict(average(states))
        print(
            f"round {rnd} loss {sum(losses) / len(losses):.4f} test {evaluate(server, test, test @ weight):.4f}"
        )


main()
