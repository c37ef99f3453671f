"""The entropy bonus of each state is detached before it is subtracted, so that nothing keeps the policy from becoming
sure too early."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
best = torch.randn(6, 4)
config = {"episodes": 8, "batch": 64, "bonus": 0.05}

for episode in range(config["episodes"]):
    states = torch.randn(config["batch"], 6)
    log_p = F.log_softmax(policy(states), dim=1)
    entropy = -(log_p.exp() * log_p).sum(1)
    bonus = config["bonus"] * entropy.detach()  # expect: broken-graph
    actions = torch.multinomial(log_p.detach().exp(), 1).squeeze(1)
    reward = ((states @ best).argmax(1) == actions).float()
    chosen = log_p.gather(1, actions[:, None]).squeeze(1)
    loss = (-chosen * (reward - reward.mean()) - bonus).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, reward.mean().item())
