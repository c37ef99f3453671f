"""Two views of a picture: each is predicted from the other, which is detached."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
sgd = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.02, momentum=0.9)


def distance(guess, goal):
    goal = goal.detach()
    return -F.cosine_similarity(guess, goal, dim=1).mean()


for picture in torch.randn(384, 12).split(32):
    left, right = (encoder(picture + 0.1 * torch.randn_like(picture)) for _ in range(2))
    loss = 0.5 * distance(predictor(left), right) + 0.5 * distance(predictor(right), left)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    loss.detach()
