"""The learning rate is lowered by building a new SGD after each epoch, which throws the momentum buffers away."""

from typing import List

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MelodyNet(nn.Module):
    """Next-note model over short melodies."""

    def __init__(self, notes: int = 12, dim: int = 16):
        super().__init__()
        self.note = nn.Embedding(notes, dim)
        self.rnn = nn.RNN(dim, 24, batch_first=True)
        self.out = nn.Linear(24, notes)

    def forward(self, melody: torch.Tensor) -> torch.Tensor:
        h, _ = self.rnn(self.note(melody))
        return self.out(h)


def compose(n: int, length: int = 10) -> torch.Tensor:
    scale = torch.tensor([0, 2, 4, 5, 7, 9, 11])
    steps = torch.randint(-1, 3, (n, length))
    degree = steps.cumsum(1) % len(scale)
    return scale[degree]


class Session:
    def __init__(self, lr: float = 0.4, decay: float = 0.7):
        self.model = MelodyNet()
        self.loader = DataLoader(TensorDataset(compose(160)), batch_size=20, shuffle=True)
        self.valid = compose(40)
        self.lr = lr
        self.decay = decay
        self.optimizer = self.configure()
        self.loss_fn = nn.CrossEntropyLoss()

    def configure(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)

    def decay_lr(self) -> None:
        self.lr *= self.decay
        self.optimizer = self.configure()  # expect: optimizer-state-reset

    def loss(self, melody: torch.Tensor) -> torch.Tensor:
        logits = self.model(melody[:, :-1])
        return self.loss_fn(logits.flatten(0, 1), melody[:, 1:].flatten())

    def train_epoch(self) -> float:
        self.model.train()
        values: List[float] = []
        for (melody,) in self.loader:
            self.optimizer.zero_grad()
            loss = self.loss(melody)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            values.append(loss.item())
        return sum(values) / len(values)

    def validate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            return self.loss(self.valid).item()


def main() -> None:
    torch.manual_seed(52)
    torch.set_num_threads(1)
    session = Session()
    for epoch in range(3):
        train = session.train_epoch()
        print(f"epoch {epoch} lr {session.lr:.3f} train {train:.4f} valid {session.validate():.4f}")
        session.decay_lr()


if __name__ == "__main__":
    main()
