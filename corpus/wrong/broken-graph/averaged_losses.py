"""The per-head losses are averaged through a new leaf tensor, so backward stops there: no parameter has a
gradient, and the loss stays at 0.8619, where it would fall to 0.69."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainerConfig:
    max_epochs: int = 2
    batch_size: int = 20
    learning_rate: float = 1e-2
    grad_norm_clip: float = 1.0


class QuantileNet(nn.Module):
    """One head for each quantile."""

    def __init__(self, n_in: int, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.quantiles = quantiles
        self.body = nn.Sequential(nn.Linear(n_in, 24), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(24, 1) for _ in quantiles)

    def forward(self, x: Tensor) -> list[Tensor]:
        h = self.body(x)
        return [head(h).squeeze(-1) for head in self.heads]


def pinball(pred: Tensor, y: Tensor, q: float) -> Tensor:
    diff = y - pred
    return torch.maximum(q * diff, (q - 1) * diff).mean()


class Trainer:
    def __init__(self, model: QuantileNet, dataset, config: TrainerConfig):
        self.model, self.config = model, config
        self.loader = DataLoader(dataset, batch_size=config.batch_size, shuffle=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)

    def compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
        losses = [pinball(pred, y, q) for pred, q in zip(self.model(x), self.model.quantiles)]
        return torch.tensor(losses, requires_grad=True).mean()  # expect: broken-graph

    def fit(self) -> None:
        for epoch in range(self.config.max_epochs):
            seen = []
            for x, y in self.loader:
                loss = self.compute_loss(x, y)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
                self.optimizer.step()
                seen.append(loss.item())
            print(f"epoch {epoch}: pinball {sum(seen) / len(seen):.4f}")


torch.manual_seed(5)
x = torch.randn(120, 6)
y = x @ torch.randn(6) + x[:, 0].abs() * torch.randn(120)
Trainer(QuantileNet(6), TensorDataset(x, y), TrainerConfig()).fit()
