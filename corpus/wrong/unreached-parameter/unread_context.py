"""What the attention returns is never read."""

import torch
from torch import nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, vocab=50, dim=16, classes=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.attn = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, tokens):
        e = self.embed(tokens)
        h, _ = self.rnn(e)
        context = self.attn(h).mean(1)  # expect: unreached-parameter
        return self.out(h[:, -1])


def main():
    torch.manual_seed(0)
    model = Classifier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(15):
        x = torch.randint(50, (8, 6))
        y = torch.randint(3, (8,))
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())


main()
