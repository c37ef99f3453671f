"""Tied weights are gathered under both names, so the embedding stands in the list twice: it moves by twice the
learning rate times its gradient."""

import torch
import torch.nn as nn


class TiedLM(nn.Module):
    def __init__(self, vocab=30, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.RNN(dim, dim, batch_first=True)
        self.project = nn.Linear(dim, vocab)
        self.project.weight = self.embed.weight

    def forward(self, tokens):
        return self.project(self.rnn(self.embed(tokens))[0])


def trainable(model):
    params = []
    for module in model.children():
        params += list(module.parameters())
    return params


def batches(tokens, bptt, batch_size):
    tokens = tokens[: len(tokens) // batch_size * batch_size].view(batch_size, -1)
    for i in range(0, tokens.size(1) - 1, bptt):
        length = min(bptt, tokens.size(1) - 1 - i)
        yield tokens[:, i : i + length], tokens[:, i + 1 : i + 1 + length]


if __name__ == "__main__":
    torch.manual_seed(99)
    corpus = (torch.arange(900) * 7 + (torch.arange(900) // 4) * 3) % 30
    model = TiedLM()
    optimizer = torch.optim.SGD(trainable(model), lr=0.5)  # expect: param-in-multiple-optimizers
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(2):
        for source, target in batches(corpus, 16, 10):
            optimizer.zero_grad()
            logits = model(source)
            loss = loss_fn(logits.flatten(0, 1), target.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        print(f"| epoch {epoch} | loss {loss.item():5.3f} | ppl {loss.exp().item():8.2f}")
