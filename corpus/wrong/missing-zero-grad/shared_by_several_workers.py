"""Workers copy their gradients to a shared actor-critic, in two backward calls each. Only the shared ones are cleared."""

import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 12)
        self.pi, self.v = nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, x):
        h = torch.tanh(self.base(x))
        return self.pi(h).log_softmax(-1), self.v(h).squeeze(-1)


class Worker:
    def __init__(self, shared):
        self.shared, self.net = shared, ActorCritic()

    def gradients(self, x, action, reward):
        self.net.load_state_dict(self.shared.state_dict())
        logp, value = self.net(x)
        advantage = (reward - value).detach()
        actor = -(logp.gather(1, action[:, None])[:, 0] * advantage).mean()
        actor.backward(retain_graph=True)
        (reward - value).square().mean().backward()
        for mine, theirs in zip(self.net.parameters(), self.shared.parameters()):
            theirs.grad = mine.grad.clone()


torch.manual_seed(2)
shared = ActorCritic()
optimizer = torch.optim.SGD(shared.parameters(), lr=0.05)
workers = [Worker(shared) for _ in range(2)]
for round_ in range(16):
    for worker in workers:
        x, action = torch.randn(10, 6), torch.randint(3, (10,))
        optimizer.zero_grad()  # expect: missing-zero-grad
        worker.gradients(x, action, (action == x[:, :3].argmax(1)).float())
        optimizer.step()
print(f"{shared.base.weight.norm():.3f}")
