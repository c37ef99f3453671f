"""The prompt is re-wrapped as a new parameter in each forward, so the gradient ends in that copy and the prompt in the
optimizer stays at its start."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(33)


class FrozenLM(nn.Module):
    def __init__(self, vocab=16, d=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, inputs_embeds):
        return self.lm_head(self.gru(inputs_embeds)[0])


class PromptTuned(nn.Module):
    def __init__(self, lm, n_prompt=4):
        super().__init__()
        self.lm = lm.requires_grad_(False)
        self.prompt = nn.Parameter(0.1 * torch.randn(n_prompt, lm.wte.embedding_dim))
        self.scale = nn.Parameter(torch.ones(lm.lm_head.out_features))

    def forward(self, ids):
        prompt = nn.Parameter(self.prompt.clone())  # expect: broken-graph
        prompt = prompt.expand(len(ids), -1, -1)
        h = torch.cat([prompt, self.lm.wte(ids)], dim=1)
        return self.lm(h)[:, prompt.size(1) :] * self.scale


ids = torch.randint(0, 16, (160, 6))
target = (ids + 3) % 16
model = PromptTuned(FrozenLM())
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)

for epoch in range(2):
    for batch in torch.randperm(160).view(10, 16):
        loss = F.cross_entropy(model(ids[batch]).flatten(0, 1), target[batch].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
