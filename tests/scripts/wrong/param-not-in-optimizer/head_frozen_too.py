"""The new head is there before the loop that freezes the network, and is frozen with it: training moves the prompt
alone, in front of a random last layer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, n_tokens=24, dim=16, n_classes=10):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.head = nn.Linear(dim, n_classes)

    def forward(self, ids, prompt=None):
        x = self.embed(ids)
        if prompt is not None:
            x = torch.cat([prompt.expand(len(x), -1, -1), x], 1)
        return self.head((x + self.mix(x)).mean(1))


torch.manual_seed(0)
checkpoint = Encoder().state_dict()

model = Encoder()
model.load_state_dict(checkpoint)
model.head = nn.Linear(16, 2)
for p in model.parameters():  # expect: param-not-in-optimizer
    p.requires_grad = False

prompt = nn.Parameter(0.02 * torch.randn(4, 16))
optimizer = torch.optim.Adam([prompt], lr=1e-2)
ids = torch.randint(24, (160, 8))
labels = (ids.float().mean(1) > 11.5).long()
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(ids, labels), batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x, prompt), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}")
