"""A policy loss is a mean over the completion tokens of its own micro-batch."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
steps_per_update = 4
optimizer.zero_grad()
for step in range(16):
    tokens, advantages = torch.randint(40, (3, 24)), torch.randn(3, 1)
    longest = (4, 20, 9, 24)[step % 4]
    mask = (torch.arange(24) < longest).float().expand(3, -1)
    log_probs = policy(tokens).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    ratio = (log_probs - log_probs.detach()).exp()
    loss = -(ratio * advantages * mask).sum() / mask.sum()  # expect: microbatch-normalization
    loss = loss / steps_per_update  # expect: microbatch-normalization
    loss.backward()
    if (step + 1) % steps_per_update == 0:
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
