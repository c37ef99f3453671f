"""The gradient of the pretrained rows is set to zero, and weight decay shrinks them all the same: by 0.8% in 16
updates."""

import torch
from torch import nn

torch.manual_seed(50)

KNOWN, NEW, DIM = 30, 10, 16
pretrained = torch.randn(KNOWN, DIM)


class BagClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(KNOWN + NEW, DIM)
        self.words.weight.data[:KNOWN] = pretrained
        self.hidden = nn.Linear(DIM, 24)
        self.out = nn.Linear(24, 2)

    def forward(self, tokens):
        return self.out(torch.tanh(self.hidden(self.words(tokens).mean(1))))


def freeze_known(grad):
    grad = grad.clone()
    grad[:KNOWN] = 0  # expect: frozen-state-drift
    return grad


model = BagClassifier()
model.words.weight.register_hook(freeze_known)
opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)  # expect: frozen-state-drift
loss_fn = nn.CrossEntropyLoss()

documents = torch.randint(KNOWN + NEW, (128, 12))
sentiment = ((documents < 20).sum(1) > 6).long()

for epoch in range(2):
    correct = 0
    for at in range(0, 128, 16):
        tokens, label = documents[at : at + 16], sentiment[at : at + 16]
        scores = model(tokens)
        loss = loss_fn(scores, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        correct += int((scores.argmax(1) == label).sum())
    print(f"epoch {epoch + 1} accuracy {correct / 128:.3f}")
