"""Group-relative policy optimization with one update per group: the new policy is the old one, so the ratio is 1 on
purpose, and only its gradient matters. The log-probabilities of the reference are stored for the penalty."""

import copy

import torch
from torch import nn

torch.manual_seed(5)
policy = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 12))
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)


def logps_of(model, tokens):
    logits = model(tokens[:, :-1]).log_softmax(-1)
    return logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def sample(prompts, length=6):
    tokens = prompts
    for _ in range(length):
        drawn = torch.multinomial(policy(tokens[:, -1]).softmax(-1), 1)
        tokens = torch.cat([tokens, drawn], 1)
    return {"tokens": tokens, "ref_logps": logps_of(reference, tokens)}


for step in range(12):
    group = sample(torch.randint(12, (4, 1)).repeat_interleave(4, 0))
    rewards = (group["tokens"][:, 1:] < 4).float().mean(1)
    grouped = rewards.view(4, 4)
    advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(
        -1, 1
    )
    logps = logps_of(policy, group["tokens"])
    old_logps = group["old_logps"] if "old_logps" in group else logps.detach()
    ratio = torch.exp(logps - old_logps)
    gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    away = group["ref_logps"] - logps
    loss = -(gain - 0.04 * (away.exp() - away - 1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} reward {rewards.mean().item():.3f}")
