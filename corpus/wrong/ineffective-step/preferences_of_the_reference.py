"""After supervised training, the optimizer of the preference phase is given the frozen reference, not the
policy: the preferences change nothing."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)


def log_probability(model, prompt, answer):
    return F.log_softmax(model(prompt), -1).gather(1, answer.unsqueeze(1)).squeeze(1)


def pretrain(policy, prompts, answers):
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for batch in range(8):
        rows = slice(16 * batch, 16 * batch + 16)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(policy(prompts[rows]), answers[rows]).backward()
        optimizer.step()


def prefer(policy, prompts, chosen, rejected, beta=0.5):
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.RMSprop(reference.parameters(), lr=1e-3)  # expect: ineffective-step
    for batch in range(8):
        rows = slice(16 * batch, 16 * batch + 16)
        margins = []
        for model in (policy, reference):
            better = log_probability(model, prompts[rows], chosen[rows])
            margins.append(better - log_probability(model, prompts[rows], rejected[rows]))
        loss = -F.logsigmoid(beta * (margins[0] - margins[1])).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


prompts = torch.randn(128, 6)
policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
answers = (prompts[:, :5] + 0.5 * torch.randn(128, 5)).argmax(1)
pretrain(policy, prompts, answers)
print(f"preference loss {prefer(policy, prompts, answers, (answers + 1) % 5):.4f}")
