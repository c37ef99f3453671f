"""Twin critics of which the optimizer holds only the first: the second one keeps its initial weights, and
the smaller of the two values is that of a random network."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 24)
        self.fc2 = nn.Linear(24, 1)

    def forward(self, state, action):
        return self.fc2(F.relu(self.fc1(torch.cat([state, action], 1)))).squeeze(1)


actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1), nn.Tanh())
q1, q2 = Critic(), Critic()
q_optimizer = torch.optim.Adam(list(q1.parameters()), lr=1e-3)  # expect: wasted-gradient
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
for step in range(24):
    state = torch.randn(32, 3)
    action = 2 * torch.rand(32, 1) - 1
    target = state[:, 0] - (action[:, 0] - state[:, 1].tanh()) ** 2
    q_loss = F.mse_loss(q1(state, action), target) + F.mse_loss(q2(state, action), target)
    q_optimizer.zero_grad()
    q_loss.backward()
    q_optimizer.step()
    if step % 2 == 0:
        proposed = actor(state)
        actor_loss = -torch.min(q1(state, proposed), q2(state, proposed)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
print(f"q {q_loss.item():.4f} actor {actor_loss.item():.4f}")
