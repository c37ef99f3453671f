"""A frozen reference is saved, loaded, and loads its own state once more, to show that nothing is missing."""

import copy
import io

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(20):
    inputs = torch.randn(16, 6)
    log_probabilities = F.log_softmax(policy(inputs), dim=1)
    reward = (log_probabilities[:, 0].exp() * inputs[:, 0]).mean()
    with torch.no_grad():
        before = F.log_softmax(reference(inputs), dim=1)
    loss = F.kl_div(before, log_probabilities, log_target=True, reduction="batchmean") - reward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 9:
        file = io.BytesIO()
        torch.save(reference.state_dict(), file)
        file.seek(0)
        reference.load_state_dict(torch.load(file))
        reference.load_state_dict(reference.state_dict())
