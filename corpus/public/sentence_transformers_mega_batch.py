"""Of each batch of 12 pairs, MegaBatchMarginLoss trains on the last mini-batch of 4 alone.

The encoder is a bag of words of random vectors, so nothing is downloaded.
"""

import random

import torch
from sentence_transformers import SentenceTransformer, losses
from torch import nn

random.seed(0)
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.vectors = nn.EmbeddingBag(60, 16)
        self.project = nn.Linear(16, 16)

    def tokenize(self, texts, **kwargs):
        return {"input_ids": torch.tensor([[int(word) for word in text.split()] for text in texts])}

    preprocess = tokenize

    def forward(self, features):
        return {**features, "sentence_embedding": self.project(self.vectors(features["input_ids"]))}

    def save(self, *args, **kwargs):
        pass


model = SentenceTransformer(modules=[Words()], device="cpu")
loss_of = losses.MegaBatchMarginLoss(model, mini_batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(12):
    anchors = [[random.randrange(60) for _ in range(8)] for _ in range(12)]
    positives = [[*words[2:], random.randrange(60), random.randrange(60)] for words in anchors]
    features = [
        model.tokenize([" ".join(map(str, words)) for words in texts]) for texts in (anchors, positives)
    ]
    loss = loss_of(features, None)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
