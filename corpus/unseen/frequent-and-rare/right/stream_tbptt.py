"""Truncated backpropagation on a stream. The state is carried from chunk to chunk and detached in
between, so gradients stop at the chunk border; the learned first state gets one only in chunk one."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class StreamModel(nn.Module):
    def __init__(self, n_symbols=5, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(n_symbols, 12)
        self.rnn = nn.LSTM(12, hidden, batch_first=True)
        self.out = nn.Linear(hidden, n_symbols)
        self.h0 = nn.Parameter(torch.zeros(1, 1, hidden))
        self.c0 = nn.Parameter(torch.zeros(1, 1, hidden))

    def initial(self, batch):
        return (self.h0.expand(-1, batch, -1).contiguous(),
                self.c0.expand(-1, batch, -1).contiguous())

    def forward(self, x, state):
        o, state = self.rnn(self.embed(x), state)
        return self.out(o), state


def cut(state):
    return tuple(s.detach() for s in state)


def make_stream(batch, length, n_symbols=5):
    """Each symbol is the sum of the two before it, with a little noise."""
    s = torch.randint(0, n_symbols, (batch, length))
    for t in range(2, length):
        nxt = (s[:, t - 1] + s[:, t - 2]) % n_symbols
        flip = torch.rand(batch) < 0.05
        s[:, t] = torch.where(flip, s[:, t], nxt)
    return s


def train(model, stream, chunk=15, epochs=3):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = stream[:, :-1], stream[:, 1:]
    for epoch in range(epochs):
        state = model.initial(len(stream))
        losses = []
        for xc, yc in zip(x.split(chunk, 1), y.split(chunk, 1)):
            logits, state = model(xc, state)
            loss = F.cross_entropy(logits.flatten(0, 1), yc.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            state = cut(state)
            losses.append(loss.item())
        print(f"epoch {epoch}: {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    torch.manual_seed(291)
    net = StreamModel()
    train(net, make_stream(16, 151))
    print(f"first state norm {net.h0.norm().item():.4f}")
