"""Encoder and decoder share one embedding, and concatenating both parameter lists puts it into the optimizer twice, so it is stepped twice per update."""

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)

VOCAB, DIM, LENGTH, BOS = 16, 14, 6, 0


class Encoder(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, src):
        out, h = self.rnn(self.embedding(src))
        return out, h


class Decoder(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.combine = nn.Linear(2 * DIM, DIM)

    def forward(self, tgt, memory, h):
        out, h = self.rnn(self.embedding(tgt), h)
        attn = torch.softmax(out @ memory.transpose(1, 2) / DIM**0.5, dim=-1)
        out = torch.tanh(self.combine(torch.cat([out, attn @ memory], dim=-1)))
        return F.linear(out, self.embedding.weight), h


def sample_pairs(n):
    """'Translation' = add 3 to every symbol and swap neighbours."""
    src = torch.randint(1, VOCAB, (n, LENGTH))
    tgt = 1 + (src + 2) % (VOCAB - 1)
    return src, tgt.view(n, -1, 2).flip(-1).reshape(n, LENGTH)


def shift_right(tgt):
    return torch.cat([torch.full((len(tgt), 1), BOS), tgt[:, :-1]], dim=1)


def train_step(encoder, decoder, optimizer, src, tgt):
    optimizer.zero_grad()
    memory, h = encoder(src)
    logits, _ = decoder(shift_right(tgt), memory, h)
    loss = F.cross_entropy(logits.transpose(1, 2), tgt)
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def greedy_accuracy(encoder, decoder, src, tgt):
    memory, h = encoder(src)
    token = torch.full((len(src), 1), BOS)
    hits = 0
    for t in range(LENGTH):
        logits, h = decoder(token, memory, h)
        token = logits.argmax(-1)
        hits += (token[:, 0] == tgt[:, t]).sum().item()
    return hits / tgt.numel()


def main():
    torch.manual_seed(44)
    embedding = nn.Embedding(VOCAB, DIM)
    encoder, decoder = Encoder(embedding), Decoder(embedding)
    parameters = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)  # expect: param-in-multiple-optimizers
    for epoch in range(2):
        losses = [train_step(encoder, decoder, optimizer, *sample_pairs(32)) for _ in range(4)]
        acc = greedy_accuracy(encoder, decoder, *sample_pairs(64))
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} greedy acc {acc:.3f}")


if __name__ == "__main__":
    main()
