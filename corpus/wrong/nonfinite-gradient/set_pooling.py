"""Empty sets are guarded with torch.where after the division, but the hidden 0/0 still sends NaN back through its gradient into the item encoder."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Basket:
    items: Tensor  # (batch, slots) item ids
    present: Tensor  # (batch, slots) 1 where there is an item
    bought: Tensor  # (batch,) 1 if the customer came back


def make_baskets(n: int, slots: int = 5, n_items: int = 25) -> Basket:
    items = torch.randint(0, n_items, (n, slots))
    size = torch.randint(0, slots + 1, (n, 1))
    present = (torch.arange(slots) < size).float()
    score = ((items % 3 == 0).float() * present).sum(1) - ((items % 3 == 1).float() * present).sum(1)
    bought = (score + 0.5 * torch.randn(n) > 0).float()
    return Basket(items, present, bought)


class DeepSet(nn.Module):
    def __init__(self, n_items: int = 25, dim: int = 8):
        super().__init__()
        self.phi = nn.Sequential(nn.Embedding(n_items, dim), nn.Linear(dim, 16), nn.GELU())
        self.gate = nn.Linear(16, 1)
        self.rho = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))

    def pool(self, h: Tensor, present: Tensor) -> Tensor:
        w = torch.sigmoid(self.gate(h)).squeeze(-1) * present
        mass = w.sum(1, keepdim=True)
        mean = (w.unsqueeze(-1) * h).sum(1) / mass  # expect: nonfinite-gradient
        return torch.where(mass > 0, mean, torch.zeros_like(mean))

    def forward(self, basket: Basket) -> Tensor:
        h = self.phi(basket.items)
        return self.rho(self.pool(h, basket.present)).squeeze(-1)


class Fitter:
    def __init__(self, model: nn.Module, lr: float = 3e-3):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.criterion = nn.BCEWithLogitsLoss()

    def epoch(self, n_batches: int, batch_size: int) -> float:
        self.model.train()
        values = []
        for _ in range(n_batches):
            basket = make_baskets(batch_size)
            self.opt.zero_grad()
            loss = self.criterion(self.model(basket), basket.bought)
            loss.backward()
            self.opt.step()
            values.append(loss.item())
        return sum(values) / len(values)

    @torch.no_grad()
    def validate(self, basket: Basket) -> float:
        self.model.eval()
        return ((self.model(basket) > 0).float() == basket.bought).float().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(27)
    fitter = Fitter(DeepSet())
    holdout = make_baskets(100)
    for e in range(2):
        print(f"epoch {e} loss {fitter.epoch(6, 32):.4f} acc {fitter.validate(holdout):.3f}")
