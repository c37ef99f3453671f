"""Words are deleted from a sentence, and a decoder with tied embeddings has to give them all back from one vector:
the same matrix is read three times, and inputs are changed in place before the graph begins."""

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0


class Denoiser(nn.Module):
    def __init__(self, words=40, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, noisy, previous):
        _, state = self.encoder(self.embed(noisy))
        hidden, _ = self.decoder(self.embed(previous), state)
        return self.out(hidden)


def delete_words(ids, share=0.6):
    noisy = ids.clone()
    noisy[torch.rand(ids.shape) < share] = PAD
    return noisy


torch.manual_seed(10)
corpus = torch.randint(1, 40, (48, 8))
corpus[::3, 6:] = PAD
model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, total_iters=8)
for epoch in range(2):
    for ids in corpus.split(12):
        logits = model(delete_words(ids), F.pad(ids[:, :-1], (1, 0)))
        loss = F.cross_entropy(logits.transpose(1, 2), ids, ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    print(f"{epoch}: {loss.item():.3f}")
