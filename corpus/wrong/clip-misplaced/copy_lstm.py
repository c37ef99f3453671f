"""clip_grad_norm_ is called after optimizer.step(), where the gradients have been used already, so no update is ever clipped."""

import torch
from torch import nn


class Copier(nn.Module):
    def __init__(self, symbols=8, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(symbols + 1, 8)
        self.lstm = nn.LSTM(8, hidden, num_layers=2, batch_first=True)
        self.proj = nn.Linear(hidden, symbols)

    def forward(self, seq):
        out, _ = self.lstm(self.embed(seq))
        return self.proj(out)


class CopyTask:
    def __init__(self, symbols=8, length=5):
        self.symbols, self.length = symbols, length

    def sample(self, n):
        payload = torch.randint(0, self.symbols, (n, self.length))
        blank = torch.full_like(payload, self.symbols)
        return torch.cat([payload, blank], dim=1), payload


class CopyTrainer:
    def __init__(self, model, task, lr=0.5, max_norm=0.05):
        self.model = model
        self.task = task
        self.max_norm = max_norm
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.norms = []

    def loss(self, seq, payload):
        logits = self.model(seq)[:, self.task.length :]
        return self.criterion(logits.transpose(1, 2), payload)

    def train_step(self, n=16):
        seq, payload = self.task.sample(n)
        self.optimizer.zero_grad()
        loss = self.loss(seq, payload)
        loss.backward()
        self.optimizer.step()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)  # expect: clip-misplaced
        self.norms.append(norm.item())
        return loss.item()

    def evaluate(self, n=64):
        self.model.eval()
        with torch.no_grad():
            value = self.loss(*self.task.sample(n)).item()
        self.model.train()
        return value

    def run(self, epochs, steps):
        for epoch in range(epochs):
            losses = [self.train_step() for _ in range(steps)]
            print(f"epoch {epoch}: train {sum(losses) / steps:.4f} held-out {self.evaluate():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(6)
    trainer = CopyTrainer(Copier(), CopyTask())
    trainer.run(epochs=2, steps=8)
    print(f"largest gradient norm {max(trainer.norms):.3f}")
