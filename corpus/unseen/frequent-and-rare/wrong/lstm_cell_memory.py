"""Recall task with an LSTM cell. The state is detached at every time step, so no gradient reaches
the steps before the last one although the task is about the first."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Recall(nn.Module):
    """Reads a sequence and names the symbol that stood at its beginning."""

    def __init__(self, n_symbols, hidden):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(n_symbols, 8)
        self.cell = nn.LSTMCell(8, hidden)
        self.readout = nn.Linear(hidden, n_symbols)
        self.last_norm = 0.0

    def init_state(self, batch):
        zeros = torch.zeros(batch, self.hidden)
        return zeros, zeros.clone()

    def forward(self, tokens):
        h, c = self.init_state(tokens.size(0))
        for t in range(tokens.size(1)):
            h, c = self.cell(self.embed(tokens[:, t]), (h.detach(), c.detach()))  # expect: state cut at every step
        self.last_norm = h.detach().norm(dim=1).mean().item()
        return self.readout(h)


def sample(batch, length, n_symbols):
    tokens = torch.randint(0, n_symbols, (batch, length))
    return tokens, tokens[:, 0]


def train(steps=30, n_symbols=4, length=6):
    torch.manual_seed(9)
    model = Recall(n_symbols, 24)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    curve = []
    for step in range(steps):
        x, y = sample(64, length, n_symbols)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append(loss.item())
    return model, curve


if __name__ == "__main__":
    model, curve = train()
    x, y = sample(256, 6, 4)
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    print(f"loss {curve[0]:.3f} -> {curve[-1]:.3f}, accuracy {acc:.2f}")
    print(f"state norm {model.last_norm:.3f}")
