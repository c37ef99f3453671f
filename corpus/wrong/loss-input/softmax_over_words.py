"""The log_softmax of a tagger runs over the words of a sentence, not over the tags: tags of a word don't compete."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, vocabulary=30, tags=5, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * dim, tags)
        self.log_softmax = nn.LogSoftmax(dim=1)

    def forward(self, words):
        hidden, _ = self.lstm(self.embed(words))
        return self.log_softmax(self.tag(hidden))


def main():
    torch.manual_seed(0)
    model = Tagger()
    loss_function = nn.NLLLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(5):
            words = torch.randint(30, (12, 8))
            tags = words % 5
            model.zero_grad()
            scores = model(words)
            loss = loss_function(scores.view(-1, 5), tags.view(-1))  # expect: loss-input
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
