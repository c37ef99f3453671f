"""Early stopping keeps the state of the best epoch in memory, but not a copy of it: every epoch is the best."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)


class Stopper:
    def __init__(self, patience=4):
        self.best, self.patience, self.waited = None, patience, 0
        self.kept = None

    def stops(self, score, network):
        if self.best is None or score > self.best + 1e-3:
            self.best, self.waited = score, 0
            state = network.state_dict()  # expect: inplace-param-update
            self.kept = {key: value.cpu() for key, value in state.items()}
        else:
            self.waited += 1
        return self.waited >= self.patience


features = torch.randn(160, 20)
labels = (features[:, :3].sum(1) + torch.randn(160) > 0).long()
network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
stopper = Stopper()


@torch.no_grad()
def accuracy():
    network.eval()
    return (network(features[96:]).argmax(1) == labels[96:]).float().mean().item()


for epoch in range(20):
    network.train()
    for rows in torch.randperm(96).split(24):
        optimizer.zero_grad()
        F.cross_entropy(network(features[rows]), labels[rows]).backward()
        optimizer.step()
    if stopper.stops(accuracy(), network):
        break
network.load_state_dict(stopper.kept)
print(f"best accuracy {stopper.best:.3f}, restored {accuracy():.3f}")
