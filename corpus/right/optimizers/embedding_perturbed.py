"""The embedding is moved up its gradient, and the gradient at the moved embedding is added to the first one, on
purpose: the model learns from the text as it is and as it is perturbed."""

import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, tokens):
        return self.out(self.rnn(self.embedding(tokens))[0][:, -1])


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for step in range(10):
    tokens = torch.randint(40, (16, 8))
    labels = (tokens[:, 0] < 20).long()
    loss = criterion(model(tokens), labels)
    loss.backward()
    weight = model.embedding.weight
    kept = weight.data.clone()
    weight.data.add_(0.5 * weight.grad / weight.grad.norm())
    perturbed = criterion(model(tokens), labels)
    perturbed.backward()
    weight.data = kept
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        print(f"step {step + 1}: {loss.item():.3f} {perturbed.item():.3f}")
