"""The advantage is not detached, and the critic's own loss computes the values once more."""

import torch
from torch import nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 32)
        self.fc_pi = nn.Linear(32, 2)
        self.fc_v = nn.Linear(32, 1)

    def pi(self, x):
        return F.softmax(self.fc_pi(F.relu(self.fc1(x))), dim=1)

    def v(self, x):
        return self.fc_v(F.relu(self.fc1(x)))


torch.manual_seed(0)
model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for update in range(20):
    s = torch.randn(15, 4)
    with torch.no_grad():
        a = torch.multinomial(model.pi(s), 1)
        td_target = (s[:, 0] * (2 * a[:, 0] - 1)) + 0.98 * model.v(s).reshape(-1)
    advantage = td_target - model.v(s).reshape(-1)
    log_pi = torch.log(model.pi(s).gather(1, a)).reshape(-1)
    loss = -(log_pi * advantage).mean() + F.smooth_l1_loss(
        model.v(s).reshape(-1), td_target
    )  # expect: attached-target
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
