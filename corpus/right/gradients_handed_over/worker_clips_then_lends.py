"""The worker clips its own gradients; the shared network, which the optimizer steps, then refers to the same tensors."""

import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(5, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, state):
        hidden = torch.tanh(self.body(state))
        return F.log_softmax(self.actor(hidden), -1), self.critic(hidden).squeeze(-1)


def lend(worker, shared):
    for mine, theirs in zip(worker.parameters(), shared.parameters()):
        if theirs.grad is None:
            theirs._grad = mine.grad


def work(shared, updates=12):
    worker = Policy()
    optimizer = torch.optim.RMSprop(shared.parameters(), lr=1e-3)
    for _ in range(updates):
        worker.load_state_dict(shared.state_dict())
        states = torch.randn(10, 5)
        log_probs, values = worker(states)
        actions = torch.multinomial(log_probs.exp().detach(), 1)
        returns = (states[:, 0] > 0).float()
        advantages = returns - values
        chosen = log_probs.gather(1, actions).squeeze(1)
        loss = -(chosen * advantages.detach()).mean() + 0.5 * advantages.square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(worker.parameters(), 0.2)
        lend(worker, shared)
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(1)
    print(f"loss {work(Policy()):.4f}")
