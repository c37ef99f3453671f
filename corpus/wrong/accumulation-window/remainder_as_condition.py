"""A tagger of words accumulates six micro-batches, but its condition lacks the comparison with 0."""

import torch
import torch.nn.functional as F

ACCUMULATE = 6


class Tagger(torch.nn.Module):
    def __init__(self, words: int = 40, tags: int = 5):
        super().__init__()
        self.embed = torch.nn.Embedding(words, 12)
        self.mix = torch.nn.Conv1d(12, 16, 3, padding=1)
        self.tag = torch.nn.Linear(16, tags)

    def forward(self, words):
        hidden = self.mix(self.embed(words).transpose(1, 2)).tanh()
        return self.tag(hidden.transpose(1, 2))


def train(model, sentences, steps_at):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    seen = 0
    while seen < 48:
        seen += 1
        words = sentences[torch.randint(len(sentences), (8,))]
        loss = F.cross_entropy(model(words).flatten(0, 1), (words % 5).flatten())
        loss.div(ACCUMULATE).backward()
        if seen % steps_at != 0:  # expect: accumulation-window
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return loss.item()


torch.manual_seed(2)
print(train(Tagger(), torch.randint(0, 40, (64, 9)), ACCUMULATE))
