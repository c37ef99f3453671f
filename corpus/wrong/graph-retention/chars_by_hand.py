"""The state is carried over with its graph, and retain_graph=True hides the error: each update goes back to the start."""

import torch
from torch import nn

torch.manual_seed(0)
text = "to be or not to be that is the question " * 40
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])


class CharLM(nn.Module):
    def __init__(self, v, h=32):
        super().__init__()
        self.emb = nn.Embedding(v, 16)
        self.rnn = nn.LSTM(16, h, batch_first=True)
        self.out = nn.Linear(h, v)

    def forward(self, x, state):
        y, state = self.rnn(self.emb(x), state)
        return self.out(y), state


model = CharLM(len(chars))
lossf = nn.CrossEntropyLoss()
lr = 0.5
batched = ids[: 8 * (len(ids) // 8)].view(8, -1)
state = (torch.zeros(1, 8, 32), torch.zeros(1, 8, 32))
for t in range(0, 160, 16):
    x, y = batched[:, t : t + 16], batched[:, t + 1 : t + 17]
    model.zero_grad()
    logits, state = model(x, state)  # expect: graph-retention
    loss = lossf(logits.reshape(-1, len(chars)), y.reshape(-1))
    loss.backward(retain_graph=True)
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
print(loss.item())
