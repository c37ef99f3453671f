"""The warm-up factor is an integer quotient, so the learning rate is zero for the whole warm-up: no weight
moves in 12 steps, where they would travel 0.12."""

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(64)
D_MODEL, N_TOKENS, WARMUP, STEPS = 16, 10, 20, 12


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, D_MODEL)
        layer = nn.TransformerEncoderLayer(
            D_MODEL, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=1)
        self.tags = nn.Linear(D_MODEL, 3)

    def forward(self, tokens):
        return self.tags(self.encoder(self.embedding(tokens)))


def sample(batch_size=16, length=8):
    tokens = torch.randint(N_TOKENS, (batch_size, length))
    tags = (tokens + tokens.roll(1, dims=1)) % 3
    return tokens, tags


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) // WARMUP))  # expect: ineffective-step
criterion = nn.CrossEntropyLoss()

model.train()
for step in range(STEPS):
    tokens, tags = sample()
    loss = criterion(model(tokens).transpose(1, 2), tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if (step + 1) % 4 == 0:
        print(f"step {step + 1:>3} loss {loss.item():.4f}")
