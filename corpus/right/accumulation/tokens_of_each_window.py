"""The tokens of each window of 2, out of a generation of 4."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
steps_per_generation, accumulation_steps = 4, 2
for generation in range(6):
    batches = []
    for micro in range(steps_per_generation):
        longest = int(torch.randint(4, 24, ()))
        mask = (torch.arange(24) < longest).float().expand(3, -1)
        batches.append((torch.randint(40, (3, 24)), torch.randn(3, 1), mask))

    for micro, (tokens, advantages, mask) in enumerate(batches):
        window = batches[micro // 2 * 2 :][:2]
        tokens_of_window = sum(mask.sum() for _, _, mask in window)
        log_probs = policy(tokens).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        ratio = (log_probs - log_probs.detach()).exp()
        loss = -(ratio * advantages * mask).sum() / tokens_of_window
        loss.backward()
        if micro % accumulation_steps == accumulation_steps - 1:
            optimizer.step()
            optimizer.zero_grad()
