"""TRL #6024: the loss is divided by the tokens of a generation batch of 4 micro-batches, and each step uses 2."""

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
    tokens_of_generation = sum(mask.sum() for _, _, mask in batches)
    for micro, (tokens, advantages, mask) in enumerate(batches):
        log_probs = policy(tokens).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        ratio = (log_probs - log_probs.detach()).exp()
        loss = -(ratio * advantages * mask).sum() / tokens_of_generation  # expect: accumulation-scaling
        loss.backward()  # expect: accumulation-scaling
        if micro % accumulation_steps == accumulation_steps - 1:
            optimizer.step()
            optimizer.zero_grad()
