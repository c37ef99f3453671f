"""Log-probabilities made in several ways: log of a mixture of softmaxes, log_softmax over the last axis before a
transpose, kl_div against a softmax that was logarithmized by hand, and CTC in a half precision."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder = nn.GRU(5, 24, batch_first=True)
experts = nn.ModuleList([nn.Linear(24, 6) for _ in range(2)])
gate = nn.Linear(24, 2)
optimizer = torch.optim.RMSprop([*encoder.parameters(), *experts.parameters(), *gate.parameters()], lr=1e-3)
nll, divergence, ctc = nn.NLLLoss(), nn.KLDivLoss(reduction="batchmean"), nn.CTCLoss()
for step in range(10):
    x = torch.randn(8, 12, 5)
    y = x[..., :5].argmax(-1)
    hidden, _ = encoder(x)
    weights = gate(hidden).softmax(-1)
    mixture = sum(weights[..., i : i + 1] * expert(hidden).softmax(-1) for i, expert in enumerate(experts))
    log_mixture = (mixture + 1e-6).log()
    tags = nll(log_mixture.transpose(1, 2), y)
    single = F.log_softmax(experts[0](hidden), dim=-1)
    words = nll(single.flatten(0, 1), y.flatten())
    soft = F.one_hot(y, 6) * 0.9 + 0.1 / 6
    close = divergence(torch.log(F.softmax(experts[1](hidden), -1)).flatten(0, 1), soft.flatten(0, 1))
    frames = single.to(torch.bfloat16).float().transpose(0, 1)
    speech = ctc(frames, y[:, :3] + 1, torch.full((8,), 12), torch.full((8,), 3))
    loss = tags + words + close + 0.1 * speech
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"{step + 1} {loss.item():.3f}")
